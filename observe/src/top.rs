//! `magpie top`: a screen of what the scheduler does, now or as recorded.
//!
//! ```text
//!   sampling thread | recording  -->  App: moments, keys  -->  screen: heat map, rates, cgroups
//! ```
//!
//! Samples are taken in a thread of its own, because the scheduler answers only some tenths of a
//! second later, and keys must not wait for that.

mod app;
mod heat_map;
mod moment;
mod picture;
mod recording;
mod screen;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::layout::Rect;

use crate::latency::probe::Probe;
use crate::sample::{Sample, Source};
use crate::scheduler::SOCKET;
use app::App;
use recording::Recorder;

/// How long the program waits for a key before it looks for a new sample.
const POLL: Duration = Duration::from_millis(100);

/// How long one answer of the scheduler may take. In a guest that its host holds back, five seconds
/// were sometimes too short.
const PATIENCE: Duration = Duration::from_secs(30);

/// The screen that is printed where there is no terminal.
const PLAIN: Rect = Rect::new(0, 0, 80, 24);

/// Watch what the running scx_magpie does
///
/// Shows each CPU by node, LLC and core, which CPUs are preferred, how long tasks are ready before
/// they run, how often each mechanism acts, steal time and how it is known, and the cgroups that
/// are throttled. The key ? explains the others. Asking the scheduler takes root.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    magpie top --record night.jsonl\n  \
    magpie top --replay night.jsonl\n  \
    magpie top --screens 1      # as text, for a script or a report\n  \
    magpie top --screens 1 --picture screen.svg")]
pub struct Args {
    /// Ask the scheduler this often
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,

    /// Write what is shown to FILE, too, for --replay
    #[arg(long, value_name = "FILE", conflicts_with = "replay")]
    record: Option<PathBuf>,

    /// Show a recorded session instead of the running scheduler
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,

    /// Do without the two lines of latencies, whose BPF program runs at each switch
    #[arg(long)]
    no_latency: bool,

    /// Print N screens as text, one after the other, and end; needs no terminal
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    screens: Option<u32>,

    /// Write the last of the printed screens to FILE, too, as a picture (SVG)
    #[arg(long, value_name = "FILE", requires = "screens")]
    picture: Option<PathBuf>,

    /// Do without colours, as with NO_COLOR in the environment
    #[arg(long, alias = "no-color")]
    no_colour: bool,

    /// Ask the scheduler at this scx_stats socket
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
}

/// Reads an interval in seconds, between 0.5 s and an hour.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.5..=3_600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give seconds between 0.5 and 3600".into()),
    }
}

/// Shows screens until the user quits, and returns the exit code.
///
/// # Errors
/// When there is no terminal, or a recording cannot be read or written.
pub fn run(args: &Args) -> Result<u8> {
    let has_colours = !args.no_colour && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let mut app = App::new(args.interval, has_colours);
    let mut feed = match &args.replay {
        Some(file) => {
            app.load(recording::read(file)?);
            Feed::Recording(Instant::now())
        }
        None => {
            let recorder = args.record.as_deref().map(Recorder::create).transpose()?;
            Feed::live(
                Source::new(&args.socket, PATIENCE, Path::new("/")),
                !args.no_latency,
                args.interval,
                recorder,
            )
        }
    };
    match args.screens {
        Some(count) => {
            let last = print_screens(&mut app, &mut feed, count)?;
            if let Some(file) = &args.picture {
                fs::write(file, picture::to_svg(&last))
                    .with_context(|| format!("writing the picture {}", file.display()))?;
            }
        }
        None => {
            ensure!(
                io::stdout().is_terminal(),
                "standard output is no terminal; --screens N prints N screens as text"
            );
            let mut terminal = ratatui::try_init()?;
            let shown = show(&mut terminal, &mut app, &mut feed);
            ratatui::restore();
            shown?;
        }
    }
    Ok(0)
}

/// Where the screen's samples come from.
enum Feed {
    /// The running scheduler: samples, and the interval in milliseconds between them.
    Live(Receiver<Result<Sample>>, Arc<AtomicU64>),
    /// A recording, and when its last sample was shown.
    Recording(Instant),
}

impl Feed {
    /// Starts the thread that takes samples, with latencies if they are asked for, and writes them
    /// to the recorder.
    fn live(
        mut source: Source,
        has_latency: bool,
        interval: f64,
        mut recorder: Option<Recorder>,
    ) -> Feed {
        let (sender, receiver) = channel();
        let pause_ms = Arc::new(AtomicU64::new((interval * 1e3) as u64));
        let pause = pause_ms.clone();
        thread::spawn(move || {
            let mut object = MaybeUninit::uninit();
            let mut probe = has_latency.then(|| Probe::start(&mut object));
            loop {
                let begin = Instant::now();
                let mut sample = source.take();
                if let Some(probe) = &mut probe {
                    let latency = probe.as_mut().map(Probe::read);
                    sample.latency = match latency {
                        Ok(read) => read.map_err(|error| format!("{error:#}")),
                        Err(error) => Err(format!("{error:#}")),
                    };
                }
                let recorded = recorder.as_mut().map_or(Ok(()), |file| file.write(&sample));
                let has_failed = recorded.is_err();
                if sender.send(recorded.map(|()| sample)).is_err() || has_failed {
                    return;
                }
                let pause = Duration::from_millis(pause.load(Ordering::Relaxed));
                thread::sleep(pause.saturating_sub(begin.elapsed()));
            }
        });
        Feed::Live(receiver, pause_ms)
    }

    /// Gives the app what is new, and returns whether there was anything.
    fn pour(&mut self, app: &mut App) -> Result<bool> {
        let mut is_new = false;
        match self {
            Feed::Live(samples, pause_ms) => {
                for sample in samples.try_iter() {
                    app.push(sample?);
                    is_new = true;
                }
                pause_ms.store((app.interval() * 1e3) as u64, Ordering::Relaxed);
            }
            Feed::Recording(shown) => {
                if shown.elapsed() >= app.pace() {
                    *shown = Instant::now();
                    app.advance();
                    is_new = true;
                }
            }
        }
        Ok(is_new)
    }
}

/// Draws the app and obeys keys until the user quits. Draws only what is new: drawing after each wait
/// for a key was most of what this screen cost.
fn show(terminal: &mut DefaultTerminal, app: &mut App, feed: &mut Feed) -> Result<()> {
    let mut is_old = true;
    while !app.is_over() {
        is_old |= feed.pour(app)?;
        if is_old {
            terminal.draw(|frame| screen::draw(app, frame.area(), frame.buffer_mut()))?;
        }
        // A key, or another size of the terminal.
        is_old = event::poll(POLL)?;
        if is_old
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            app.press(key);
        }
    }
    Ok(())
}

/// Prints screens as text, each with the rates since the one before, and returns the last one.
fn print_screens(app: &mut App, feed: &mut Feed, count: u32) -> Result<Buffer> {
    let mut buffer = Buffer::empty(PLAIN);
    for index in 0..count {
        match feed {
            Feed::Live(samples, _) => {
                // Rates are between two samples, so the first screen waits for the second one.
                let missing = if app.has_rates() { 1 } else { 2 };
                for sample in samples.iter().take(missing) {
                    app.push(sample?);
                }
            }
            Feed::Recording(_) if index > 0 => app.advance(),
            Feed::Recording(_) => {}
        }
        buffer.reset();
        screen::draw(app, PLAIN, &mut buffer);
        io::stdout().write_all(screen::to_text(&buffer).as_bytes())?;
    }
    Ok(buffer)
}
