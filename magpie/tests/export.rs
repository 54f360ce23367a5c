//! `magpie export` where no scheduler runs: it stays up and says so, over HTTP, at a unix socket
//! and in a file, and ends when asked to. Wrong input gets a message with the remedy.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// An exporter. Dropping it kills it.
struct Exporter {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Exporter {
    /// Starts an exporter that finds no scheduler.
    fn start(folder: &Path, arguments: &[&str]) -> Exporter {
        let mut process = command(folder, arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("magpie runs");
        let output = BufReader::new(process.stdout.take().expect("it is piped"));
        Exporter { process, output }
    }

    /// Returns the next line that the exporter prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim().into()
    }

    /// Ends the exporter as a service manager does, and returns its standard error.
    fn end(mut self) -> String {
        let id = self.process.id().to_string();
        let killed = Command::new("kill").args(["-INT", &id]).status();
        assert!(killed.expect("kill runs").success());
        let mut error = String::new();
        let mut stderr = self.process.stderr.take().expect("it is piped");
        stderr.read_to_string(&mut error).expect("UTF-8");
        let status = self.process.wait().expect("it ends");
        assert!(status.success(), "{status}: {error}");
        error
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An exporter that finds no scheduler, because nothing listens at the socket that it is given.
fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_magpie"));
    command.args(["export", "--socket"]);
    command.arg(folder.join("none")).args(arguments);
    command
}

/// Runs an exporter that must end by itself.
fn run(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().expect("magpie runs")
}

/// Runs an exporter that must fail, and returns its message.
fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).expect("UTF-8")
}

/// Requests a path, and returns the answer with its head.
fn get(mut stream: impl Read + Write, path: &str, accept: &str) -> String {
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("UTF-8");
    answer
}

#[test]
fn over_http_it_stays_up_without_a_scheduler() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut exporter = Exporter::start(folder.path(), &["--listen", "127.0.0.1:0"]);
    let line = exporter.line();
    let address = line
        .strip_prefix("serving metrics at http://")
        .and_then(|rest| rest.strip_suffix("/metrics"))
        .unwrap_or_else(|| panic!("an address: {line}"))
        .to_string();
    let connect = || TcpStream::connect(&address).expect("it listens");
    for _ in 0..2 {
        let answer = get(connect(), "/metrics", "application/openmetrics-text");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(
            answer.contains("application/openmetrics-text; version=1.0.0"),
            "{answer}"
        );
        assert!(answer.contains("\nmagpie_up 0\n"), "{answer}");
        assert!(answer.ends_with("# EOF\n"), "{answer}");
    }
    let plain = get(connect(), "/metrics", "text/plain;version=0.0.4");
    assert!(plain.contains("text/plain; version=0.0.4"), "{plain}");
    assert!(
        plain.contains("\nmagpie_up 0\n") && !plain.contains("EOF"),
        "{plain}"
    );
    assert!(get(connect(), "/", "*/*").contains("/metrics"));
    assert!(get(connect(), "/other", "*/*").starts_with("HTTP/1.1 404"));

    let taken = refused(folder.path(), &["--listen", &address]);
    assert!(
        taken.contains(&address) && taken.contains("--listen"),
        "{taken}"
    );

    // The reason is told once, however often Prometheus asks.
    let told = exporter.end();
    assert_eq!(told.matches("magpie_up 0").count(), 1, "{told}");
    assert!(told.contains("scx_magpie is not running"), "{told}");
}

#[test]
fn at_a_unix_socket_it_clears_up_behind_itself_and_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("metrics.sock");
    let path = socket.to_str().expect("UTF-8");
    // A program that was killed leaves its socket.
    drop(UnixListener::bind(&socket).expect("it binds"));
    let mut exporter = Exporter::start(folder.path(), &["--unix", path]);
    assert!(exporter.line().contains(path));
    let connected = UnixStream::connect(&socket).expect("it listens");
    let answer = get(connected, "/metrics", "*/*");
    assert!(answer.contains("\nmagpie_up 0\n"), "{answer}");
    let second = refused(folder.path(), &["--unix", path]);
    assert!(second.contains("another program serves at"), "{second}");
    exporter.end();
    assert!(!socket.exists());

    fs::write(&socket, "a file").expect("it writes");
    let file = refused(folder.path(), &["--unix", path]);
    assert!(file.contains("is no socket"), "{file}");
}

#[test]
fn a_textfile_is_written_once_or_kept_until_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("magpie.prom");
    let path = file.to_str().expect("UTF-8");
    let output = run(folder.path(), &["--textfile", path, "--once"]);
    assert!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(&file).expect("a file");
    assert!(
        text.contains("\nmagpie_up 0\n") && !text.contains("EOF"),
        "{text}"
    );

    let mut exporter = Exporter::start(folder.path(), &["--textfile", path]);
    assert!(exporter.line().contains(path));
    exporter.end();
    assert!(
        !file.exists(),
        "a file left behind would say for ever what was"
    );

    let missing = refused(folder.path(), &["--textfile", "/no/such/x.prom", "--once"]);
    assert!(missing.contains("/no/such/x.prom"), "{missing}");
    for (arguments, named) in [
        (&["--once"][..], "--textfile"),
        (&["--unix", "a", "--listen", "127.0.0.1:1"], "--listen"),
        (&["--textfile", "a", "--unix", "b"], "--unix"),
    ] {
        let message = refused(folder.path(), arguments);
        assert!(message.contains(named), "{message}");
    }
}
