//! `magpie export`: metrics of the running scheduler in the OpenMetrics text format, over HTTP or
//! as a file for the node exporter.
//!
//! Each scrape asks the scheduler anew. While none runs, the exporter stays up, says `magpie_up 0`,
//! and prints the reason once.

mod exporter;
mod families;
mod http;
mod metrics;
mod textfile;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::sample::Source;
use crate::scheduler::SOCKET;

pub use exporter::Exporter;
pub use families::Format;

/// Serve metrics of the running scx_magpie to Prometheus
///
/// The exporter asks scx_magpie over its scx_stats socket, which takes root. It stays up while no
/// scheduler runs, and says magpie_up 0 then. It serves on loopback unless told otherwise: the
/// metrics name the machine's cgroups, and HTTP neither encrypts nor asks for a password.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    magpie export                                  # http://127.0.0.1:9790/metrics\n  \
    magpie export --unix /run/magpie/metrics.sock  # for a proxy, or curl --unix-socket\n  \
    magpie export --textfile /var/lib/prometheus/node-exporter/magpie.prom")]
pub struct Args {
    /// Serve over HTTP at this address
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9790")]
    listen: SocketAddr,

    /// Serve over HTTP at this unix socket instead
    #[arg(long, value_name = "PATH", conflicts_with_all = ["listen", "textfile"])]
    unix: Option<PathBuf>,

    /// Write the metrics to this file instead, for the textfile collector of the node exporter
    ///
    /// The file is replaced as a whole, so that a reader never sees half of it, and removed when
    /// the exporter ends.
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    textfile: Option<PathBuf>,

    /// Write the file this often
    #[arg(long, value_name = "SECONDS", default_value_t = 15, requires = "textfile",
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: u64,

    /// Write the file once, and leave it
    #[arg(long, requires = "textfile")]
    once: bool,

    /// Wait this long for each answer of the scheduler
    ///
    /// It is shorter than Prometheus waits for a scrape (10 s), so that a scheduler that does not
    /// answer is seen as magpie_up 0.
    #[arg(long, value_name = "SECONDS", default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,

    /// Ask the scheduler at this scx_stats socket
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
}

/// Serves metrics until SIGINT or SIGTERM, and returns the exit code.
///
/// # Errors
/// When the address, the socket or the file cannot be used.
pub fn run(args: &Args) -> Result<u8> {
    let patience = Duration::from_secs(args.timeout);
    let mut exporter = Exporter::new(Source::new(&args.socket, patience, Path::new("/")));
    match (&args.textfile, &args.unix) {
        (Some(file), _) if args.once => {
            textfile::write(file, &exporter.scrape(Format::Prometheus))?
        }
        (Some(file), _) => {
            textfile::keep(file, Duration::from_secs(args.interval), &mut exporter)?;
        }
        (None, Some(socket)) => http::serve_unix(socket, &mut exporter)?,
        (None, None) => http::serve(args.listen, &mut exporter)?,
    }
    Ok(0)
}
