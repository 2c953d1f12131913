//! An end to templates that would take all memory of a host, or hours.
//!
//! The engine bounds loops and calls, but a single `~` may double a text and a single filter may
//! go through a long one. So a thread looks at what rendering takes, and ends the program where it
//! is far more than any launch file needs. A run that goes on then is taken in by the next build.

use std::{
    fs,
    io::{self, Write},
    process,
    sync::{Condvar, Mutex, MutexGuard, Once, PoisonError},
    thread,
    time::Duration,
};

use nix::unistd::{Pid, SysconfVar, gettid, sysconf};

use crate::{job::exit, words::plain};

/// Seconds of computing, and bytes, that one template may take.
const MOST_SECONDS: u64 = 5;
const MOST_BYTES: u64 = 512 << 20;
/// Other threads take memory as well: a template that has not computed this long is not to blame.
const INNOCENT: Duration = Duration::from_millis(200);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// What is being rendered now.
static RENDERING: Mutex<Vec<Rendering>> = Mutex::new(Vec::new());
static BEGUN: Condvar = Condvar::new();

struct Rendering {
    thread: Pid,
    template: String,
    /// What thread and process had taken at the first look.
    before: Option<(Duration, u64)>,
}

/// A template that is being rendered by this thread.
pub(super) struct Watched(Pid);

impl Watched {
    pub fn begin(template: &str) -> Self {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| drop(thread::Builder::new().name("templates".into()).spawn(watch)));
        let thread = gettid();
        rendering().push(Rendering {
            thread,
            template: template.to_owned(),
            before: None,
        });
        BEGUN.notify_one();
        Self(thread)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        rendering().retain(|one| one.thread != self.0);
    }
}

fn rendering() -> MutexGuard<'static, Vec<Rendering>> {
    RENDERING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch() {
    loop {
        let is_idle = |all: &mut Vec<Rendering>| all.is_empty();
        let all = BEGUN.wait_while(rendering(), is_idle);
        let mut all = all.unwrap_or_else(PoisonError::into_inner);
        for one in all.iter_mut() {
            let (Some(computed), Some(memory)) = (computed(one.thread), memory()) else {
                continue;
            };
            let (was_computed, was_memory) = *one.before.get_or_insert((computed, memory));
            let (seconds, bytes) = (
                computed.saturating_sub(was_computed),
                memory.saturating_sub(was_memory),
            );
            if seconds.as_secs() >= MOST_SECONDS {
                end(one, &format!("more than {MOST_SECONDS} s of computing"));
            } else if bytes > MOST_BYTES && seconds >= INNOCENT {
                end(
                    one,
                    &format!("more than {} MiB of memory", MOST_BYTES >> 20),
                );
            }
        }
        drop(all);
        thread::sleep(BETWEEN_LOOKS);
    }
}

fn end(of: &Rendering, took: &str) -> ! {
    let name = plain::line(&of.template);
    let what = "a launch file is a text of a few kilobytes, so simplify what the template computes";
    let _ = writeln!(
        io::stderr(),
        "error: rendering the template {name} takes {took}\n  help: {what}"
    );
    process::exit(exit::USAGE)
}

/// The time that a thread of this process has computed.
fn computed(thread: Pid) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    // Behind the name, which may hold anything: user and system time are the 12th and 13th word.
    let (_, words) = stat.rsplit_once(')')?;
    let times = words.split_whitespace().skip(11).take(2);
    let ticks = times
        .map(|ticks| ticks.parse::<u64>().ok())
        .sum::<Option<u64>>()?;
    let per_second = sysconf(SysconfVar::CLK_TCK).ok()??;
    Some(Duration::from_millis(
        ticks * 1000 / u64::try_from(per_second).ok()?.max(1),
    ))
}

/// The bytes of memory that this process has.
fn memory() -> Option<u64> {
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = pages.split_whitespace().nth(1)?.parse().ok()?;
    let size = sysconf(SysconfVar::PAGE_SIZE).ok()??;
    Some(pages * u64::try_from(size).ok()?)
}
