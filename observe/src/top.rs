//! `magpie top`: a screen of what the scheduler does, now or as recorded.
//!
//! ```text
//!   sampling thread | recording  --.
//!                                   >-->  App: moments  -->  screen: heat map, rates, cgroups
//!   thread of the keys ------------'
//! ```
//!
//! Samples are taken in a thread of its own, because the scheduler answers only some tenths of a
//! second later, and keys must not wait for that. Keys have a thread, too, so that the screen sleeps
//! until one of both has something, and draws once for each.

mod app;
mod heat_map;
mod moment;
mod picture;
mod recording;
mod screen;
mod text;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::layout::Rect;

use crate::latency::probe::Probe;
use crate::sample::{Sample, Source};
use crate::scheduler::SOCKET;
use app::App;
use recording::Recorder;

/// How long one answer of the scheduler may take. In a guest that its host holds back, five seconds
/// were sometimes too short.
const PATIENCE: Duration = Duration::from_secs(30);

const NO_SAMPLES: &str = "the thread that takes samples has ended";

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
            Feed::recorded()
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

/// What the threads tell the screen.
enum News {
    /// The running scheduler was asked; an error if the recording could not be written.
    Sample(Box<Result<Sample>>),
    /// A key was pressed.
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    /// The thread that takes samples has ended.
    NoSamples,
    /// The terminal is gone.
    NoTerminal(io::Error),
}

/// Where the screen's samples come from.
enum Origin {
    /// The running scheduler, with the interval in milliseconds between them.
    Live(Arc<AtomicU64>),
    /// A recording, and when its last sample was shown.
    Recording(Instant),
}

/// Everything that changes the screen.
struct Feed {
    origin: Origin,
    news: Receiver<News>,
    /// For the thread of the keys.
    sender: Sender<News>,
}

/// Tells the screen when the thread that takes samples ends, also if it panics.
struct End(Sender<News>);

impl Drop for End {
    fn drop(&mut self) {
        // The screen may be gone already.
        let _ = self.0.send(News::NoSamples);
    }
}

impl Feed {
    /// A feed of a recording that was just loaded.
    fn recorded() -> Feed {
        let (sender, news) = channel();
        let origin = Origin::Recording(Instant::now());
        Feed {
            origin,
            news,
            sender,
        }
    }

    /// Starts the thread that takes samples, with latencies if they are asked for, and writes them
    /// to the recorder.
    fn live(
        mut source: Source,
        has_latency: bool,
        interval: f64,
        mut recorder: Option<Recorder>,
    ) -> Feed {
        let (sender, news) = channel();
        let pause_ms = Arc::new(AtomicU64::new((interval * 1e3) as u64));
        let feed = Feed {
            origin: Origin::Live(pause_ms.clone()),
            news,
            sender: sender.clone(),
        };
        thread::spawn(move || {
            let _end = End(sender.clone());
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
                let news = News::Sample(Box::new(recorded.map(|()| sample)));
                if sender.send(news).is_err() || has_failed {
                    return;
                }
                let pause = Duration::from_millis(pause_ms.load(Ordering::Relaxed));
                thread::sleep(pause.saturating_sub(begin.elapsed()));
            }
        });
        feed
    }

    /// Starts the thread that reads keys. It ends with the process, because nothing else makes it
    /// stop to wait for a key.
    fn listen(&self) {
        let sender = self.sender.clone();
        thread::spawn(move || {
            loop {
                let news = match event::read() {
                    Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => News::Key(key),
                    Ok(Event::Resize(..)) => News::Resized,
                    Ok(_) => continue,
                    Err(error) => News::NoTerminal(error),
                };
                let is_last = matches!(news, News::NoTerminal(_));
                if sender.send(news).is_err() || is_last {
                    return;
                }
            }
        });
    }

    /// Sleeps until there is something new, and gives it to the app.
    fn pour(&mut self, app: &mut App) -> Result<()> {
        let news = match &mut self.origin {
            Origin::Live(_) => self.news.recv().ok(),
            Origin::Recording(shown) => {
                let left = app.pace().saturating_sub(shown.elapsed());
                let news = self.news.recv_timeout(left).ok();
                if news.is_none() {
                    *shown = Instant::now();
                    app.advance();
                }
                news
            }
        };
        match news {
            Some(News::Sample(sample)) => app.push((*sample)?),
            Some(News::Key(key)) => app.press(key),
            Some(News::NoTerminal(error)) => return Err(error).context("reading keys"),
            Some(News::NoSamples) => bail!(NO_SAMPLES),
            Some(News::Resized) | None => {}
        }
        if let Origin::Live(pause_ms) = &self.origin {
            pause_ms.store((app.interval() * 1e3) as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits for a sample of the running scheduler, and gives it to the app. For a screen without
    /// keys.
    fn pour_sample(&mut self, app: &mut App) -> Result<()> {
        match self.news.recv() {
            Ok(News::Sample(sample)) => app.push((*sample)?),
            _ => bail!(NO_SAMPLES),
        }
        Ok(())
    }
}

/// Draws the app whenever something is new, until the user quits.
fn show(terminal: &mut DefaultTerminal, app: &mut App, feed: &mut Feed) -> Result<()> {
    feed.listen();
    while !app.is_over() {
        terminal.draw(|frame| screen::draw(app, frame.area(), frame.buffer_mut()))?;
        feed.pour(app)?;
    }
    Ok(())
}

/// Prints screens as text, each with the rates since the one before, and returns the last one.
fn print_screens(app: &mut App, feed: &mut Feed, count: u32) -> Result<Buffer> {
    let mut buffer = Buffer::empty(PLAIN);
    for index in 0..count {
        match feed.origin {
            Origin::Live(_) => {
                // Rates are between two samples, so the first screen waits for the second one.
                let missing = if app.has_rates() { 1 } else { 2 };
                for _ in 0..missing {
                    feed.pour_sample(app)?;
                }
            }
            Origin::Recording(_) if index > 0 => app.advance(),
            Origin::Recording(_) => {}
        }
        buffer.reset();
        screen::draw(app, PLAIN, &mut buffer);
        io::stdout().write_all(screen::to_text(&buffer).as_bytes())?;
    }
    Ok(buffer)
}
