//! Serves metrics over HTTP, at an address or a unix socket, until SIGINT or SIGTERM.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use tiny_http::{Header, Method, Request, Response, Server};

use super::exporter::Exporter;
use super::families::Format;

const INDEX: &str = "magpie export: the metrics of scx_magpie are at /metrics\n";

/// Serves at an address.
///
/// # Errors
/// When the address cannot be used, as when another program has it.
pub fn serve(address: SocketAddr, exporter: &mut Exporter) -> Result<()> {
    let server = Server::http(address).map_err(|error| {
        anyhow!("serving at {address}: {error}; choose another one with --listen ADDRESS:PORT")
    })?;
    println!("serving metrics at http://{}/metrics", server.server_addr());
    if !address.ip().is_loopback() {
        eprintln!(
            "magpie export: {address} is no loopback address: whoever reaches it can read the \
             metrics, which name this machine's cgroups"
        );
    }
    answer_until_asked_to_stop(server, exporter)
}

/// Serves at a unix socket, which is removed at the end.
///
/// # Errors
/// When another program serves there, or the path cannot be used.
pub fn serve_unix(socket: &Path, exporter: &mut Exporter) -> Result<()> {
    make_way(socket)?;
    let place = socket.display();
    let server =
        Server::http_unix(socket).map_err(|error| anyhow!("serving at {place}: {error}"))?;
    println!("serving metrics at the unix socket {place}");
    let served = answer_until_asked_to_stop(server, exporter);
    fs::remove_file(socket).with_context(|| format!("removing {place}"))?;
    served
}

/// Removes the socket that an exporter left behind when it was killed.
fn make_way(socket: &Path) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(socket) else {
        return Ok(());
    };
    let place = socket.display();
    if !found.file_type().is_socket() {
        bail!("{place} exists and is no socket: give another path, or remove it");
    }
    if UnixStream::connect(socket).is_ok() {
        bail!("another program serves at {place}: end it, or give another path");
    }
    fs::remove_file(socket).with_context(|| format!("removing {place}, which nothing serves"))
}

/// Answers requests until SIGINT or SIGTERM.
fn answer_until_asked_to_stop(server: Server, exporter: &mut Exporter) -> Result<()> {
    let server = Arc::new(server);
    let stop = Arc::new(AtomicBool::new(false));
    let (stopper, stopped) = (server.clone(), stop.clone());
    ctrlc::set_handler(move || {
        stopped.store(true, Ordering::Relaxed);
        stopper.unblock();
    })
    .context("handling SIGINT and SIGTERM")?;
    for request in server.incoming_requests() {
        // A client that hangs up while it is answered is its own affair.
        let _ = answer(request, exporter);
    }
    match stop.load(Ordering::Relaxed) {
        true => Ok(()),
        false => bail!("the listening socket failed; start magpie export again"),
    }
}

/// Answers one request: metrics, or which path has them.
fn answer(request: Request, exporter: &mut Exporter) -> std::io::Result<()> {
    let path = request.url().split('?').next().unwrap_or_default();
    let plain = Format::Prometheus.content_type();
    let (code, kind, text) = match (request.method(), path) {
        (Method::Get | Method::Head, "/metrics") => {
            let format = accepted_format(&request);
            (200, format.content_type(), exporter.scrape(format))
        }
        (Method::Get | Method::Head, "/") => (200, plain, INDEX.into()),
        (Method::Get | Method::Head, _) => (404, plain, INDEX.into()),
        _ => (405, plain, "magpie export: only GET is answered\n".into()),
    };
    let header = Header::from_bytes("Content-Type", kind).expect("the header is ASCII");
    let response = Response::from_string(text).with_status_code(code);
    request.respond(response.with_header(header))
}

/// Returns the format for a client: OpenMetrics, unless it asks for plain text and does not know
/// OpenMetrics.
fn accepted_format(request: &Request) -> Format {
    let headers = request.headers().iter();
    let accepted: String = headers
        .filter(|header| header.field.equiv("Accept"))
        .map(|header| header.value.as_str())
        .collect();
    match accepted.contains("text/plain") && !accepted.contains("application/openmetrics-text") {
        true => Format::Prometheus,
        false => Format::OpenMetrics,
    }
}
