//! The init and agent inside a lab guest.
//!
//! The kernel starts it as `/init` from the initramfs. It mounts what a workload expects, opens the
//! port to the host and says hello. Then one loop around one poll serves requests of the host,
//! output and ends of children, and changes of the scheduler under test.
//!
//! The agent runs as SCHED_FIFO, which sched_ext does not schedule, so that it can report a
//! scheduler under test that starves every other task. Its children return to the normal policy at
//! the fork. When the host closes the port, the guest powers off.
//!
//! `magpie.init=PROGRAM` on the kernel's command line leaves the place of init to that program,
//! once the guest is set up.

mod boot;
mod process;
mod scheduler;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use magpie_guest::{Event, PROTOCOL, Request, encode};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{ForkResult, fork};

use crate::process::{Process, Reaped, reap};
use crate::scheduler::{Change, Scheduler};

/// Milliseconds between two looks at the state of a scheduler that starts or ends.
const STATE_INTERVAL_MS: u16 = 20;

fn main() {
    if std::process::id() != 1 {
        eprintln!("magpie-guest is the init of a lab guest; `magpie lab run` starts it there");
        std::process::exit(2);
    }
    if let Err(error) = serve() {
        eprintln!("magpie-guest: {error}");
    }
    power_off();
}

/// Powers the guest off, which ends QEMU.
fn power_off() -> ! {
    nix::unistd::sync();
    let error = nix::sys::reboot::reboot(nix::sys::reboot::RebootMode::RB_POWER_OFF);
    // The kernel panics when init ends, and that ends QEMU too.
    panic!("cannot power off: {error:?}");
}

/// Sets the guest up, says hello and serves the host.
fn serve() -> Result<(), String> {
    // SAFETY: the process has one thread, so no other reads the environment.
    unsafe {
        std::env::set_var(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        );
        std::env::set_var("HOME", "/root");
        std::env::set_var("TERM", "dumb");
        std::env::set_var("LANG", "C.UTF-8");
    }
    let warnings = boot::set_up();
    if let Some(init) = boot::other_init() {
        leave_init_to(&init)?;
    }
    run_above_all_schedulers();
    let mut agent = Agent {
        port: boot::open_port()?,
        commands: BTreeMap::new(),
        scheduler: None,
        shut_down: false,
    };
    let release = nix::sys::utsname::uname()
        .map_err(|e| format!("uname: {e}"))?
        .release()
        .to_string_lossy()
        .into_owned();
    agent.send(&Event::Hello {
        protocol: PROTOCOL,
        release,
        warnings,
    })?;
    agent.run()
}

/// Makes another program, such as systemd, the guest's init. The agent goes on as its child.
fn leave_init_to(program: &str) -> Result<(), String> {
    // SAFETY: the process has one thread, so the child may do everything.
    match unsafe { fork() }.map_err(|error| format!("fork: {error}"))? {
        ForkResult::Child => Ok(()),
        // If this returns, the kernel panics for lack of an init, and its console has the reason.
        ForkResult::Parent { .. } => Err(format!(
            "cannot run {program} as init: {}",
            Command::new(program).exec()
        )),
    }
}

/// Makes this process SCHED_FIFO, and its children normal again.
fn run_above_all_schedulers() {
    let parameter = libc::sched_param { sched_priority: 50 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: `parameter` lives through the call.
    if unsafe { libc::sched_setscheduler(0, policy, &parameter) } != 0 {
        eprintln!(
            "magpie-guest: cannot become SCHED_FIFO: {}",
            std::io::Error::last_os_error()
        );
    }
}

/// The agent's connection, children and scheduler.
struct Agent {
    port: File,
    /// Running commands by the id of their request.
    commands: BTreeMap<u64, Process>,
    scheduler: Option<Scheduler>,
    shut_down: bool,
}

impl Agent {
    fn send(&mut self, event: &Event) -> Result<(), String> {
        send(&mut self.port, event)
    }

    /// Serves until the host asks for a shutdown or closes the port.
    fn run(&mut self) -> Result<(), String> {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        mask.thread_block()
            .map_err(|e| format!("block SIGCHLD: {e}"))?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let children = SignalFd::with_flags(&mask, flags).map_err(|e| format!("signalfd: {e}"))?;
        let mut input = Vec::new();
        while !self.shut_down {
            let port = self.wait(&children)?;
            if port.contains(PollFlags::POLLIN) {
                self.read_requests(&mut input)?;
            } else if port.intersects(PollFlags::POLLHUP | PollFlags::POLLERR) {
                return Ok(());
            }
            self.read_output()?;
            while let Ok(Some(_)) = children.read_signal() {}
            while let Some(reaped) = reap() {
                self.child_ended(reaped)?;
            }
            self.check_scheduler()?;
        }
        Ok(())
    }

    /// Sleeps until there is something to do. Returns what the poll says of the port.
    fn wait(&self, children: &SignalFd) -> Result<PollFlags, String> {
        let scheduler = self.scheduler.as_ref().map(|s| &s.process);
        let mut fds = vec![
            PollFd::new(self.port.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        for (pipe, _) in self
            .commands
            .values()
            .chain(scheduler)
            .flat_map(|p| &p.pipes)
        {
            fds.push(PollFd::new(pipe.as_fd(), PollFlags::POLLIN));
        }
        let is_changing = self.scheduler.as_ref().is_some_and(Scheduler::is_changing);
        let timeout = if is_changing {
            PollTimeout::from(STATE_INTERVAL_MS)
        } else {
            PollTimeout::NONE
        };
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(format!("poll: {error}")),
        }
        Ok(fds[0].revents().unwrap_or(PollFlags::empty()))
    }

    /// Handles the requests that have arrived. `input` keeps a line that is not complete yet.
    fn read_requests(&mut self, input: &mut Vec<u8>) -> Result<(), String> {
        let mut buffer = [0; 16384];
        let length = self
            .port
            .read(&mut buffer)
            .map_err(|e| format!("cannot read from the host: {e}"))?;
        input.extend_from_slice(&buffer[..length]);
        while let Some(end) = input.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = input.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(request) => self.handle(request)?,
                Err(error) => {
                    eprintln!("magpie-guest: the host sent a line that is no request: {error}")
                }
            }
        }
        Ok(())
    }

    /// Carries out a request. An answer that takes time comes later, from the main loop.
    fn handle(&mut self, request: Request) -> Result<(), String> {
        match request {
            Request::Exec { id, argv } => match Process::start(&argv) {
                Ok(process) => {
                    self.commands.insert(id, process);
                    Ok(())
                }
                Err(message) => self.send(&Event::Failed { id, message }),
            },
            Request::Kill { id } => {
                if let Some(process) = self.commands.get(&id) {
                    process.signal_group(libc::SIGKILL);
                }
                Ok(())
            }
            Request::StartScheduler { id, argv } => {
                let started = match &self.scheduler {
                    Some(_) => Err("a scheduler is already running, stop it first".to_string()),
                    None => Scheduler::start(id, &argv),
                };
                match started {
                    Ok(scheduler) => {
                        self.scheduler = Some(scheduler);
                        Ok(())
                    }
                    Err(message) => self.send(&Event::Failed { id, message }),
                }
            }
            Request::StopScheduler { id } => match &mut self.scheduler {
                Some(scheduler) => {
                    scheduler.stop(id);
                    Ok(())
                }
                None => {
                    let message = "no scheduler is running".to_string();
                    self.send(&Event::Failed { id, message })
                }
            },
            Request::SchedulerStatus { id } => {
                let running = self.scheduler.is_some();
                self.send(&Event::Scheduler {
                    id,
                    running,
                    state: scheduler::state(),
                })
            }
            Request::Shutdown => {
                self.shut_down = true;
                Ok(())
            }
        }
    }

    /// Sends the commands' output to the host, and keeps the scheduler's.
    fn read_output(&mut self) -> Result<(), String> {
        let mut sent = Ok(());
        for (&id, process) in &mut self.commands {
            process.read_output(&mut forward(&mut self.port, id, &mut sent));
        }
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.read_output();
        }
        sent
    }

    /// Reports the end of a child. The child may also be an orphan that init has inherited.
    fn child_ended(&mut self, reaped: Reaped) -> Result<(), String> {
        if let Some(scheduler) = self
            .scheduler
            .as_mut()
            .filter(|s| s.process.pid == reaped.pid)
        {
            scheduler.note_end(reaped);
            return Ok(());
        }
        let Some((&id, _)) = self.commands.iter().find(|(_, p)| p.pid == reaped.pid) else {
            return Ok(());
        };
        let mut process = self.commands.remove(&id).expect("the id was just found");
        let result = process.result(&reaped);
        let mut sent = Ok(());
        process.drain_output(&mut forward(&mut self.port, id, &mut sent));
        sent?;
        self.send(&Event::Exited { id, result })
    }

    /// Reports a change of the scheduler's state, if there is one.
    fn check_scheduler(&mut self) -> Result<(), String> {
        match self.scheduler.as_mut().and_then(Scheduler::check) {
            None => Ok(()),
            Some(Change::Started(id)) => self.send(&Event::SchedulerStarted { id }),
            Some(Change::Exited(id, exit)) => {
                self.scheduler = None;
                self.send(&Event::SchedulerExited { id, exit })
            }
        }
    }
}

/// Returns a sink that sends a command's output to the host. `sent` keeps the first failure.
fn forward<'a>(
    port: &'a mut File,
    id: u64,
    sent: &'a mut Result<(), String>,
) -> impl FnMut(magpie_guest::Stream, &[u8]) + 'a {
    move |stream, bytes| {
        if sent.is_ok() {
            *sent = send(
                port,
                &Event::Output {
                    id,
                    stream,
                    data: encode(bytes),
                },
            );
        }
    }
}

fn send(port: &mut File, event: &Event) -> Result<(), String> {
    let mut line = serde_json::to_vec(event).map_err(|e| format!("cannot encode an event: {e}"))?;
    line.push(b'\n');
    port.write_all(&line)
        .map_err(|e| format!("cannot write to the host: {e}"))
}
