//! The kernel's queue of events for one run, and its way from tprimat to the run's supervisor.
//!
//! Closing a queue that has watched something takes the kernel about 10 ms, longer than many a short
//! run, and whoever has it open last waits for that. So tprimat keeps the queues of ended runs, and
//! hands them to the runs that follow.

use std::{
    collections::BTreeSet,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::Mutex,
};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use super::super::run::lock;

/// How often the kernel is asked for more at once: enough for all that its queue holds, and not for
/// ever where somebody writes faster than this reads.
const READINGS: usize = 512;

/// Those of ended runs, which watch nothing.
static IDLE: Mutex<Vec<Queue>> = Mutex::new(Vec::new());

#[derive(Debug)]
pub struct Queue {
    inotify: Inotify,
    /// By this process, which ends them when it has no more use for the queue.
    watches: BTreeSet<WatchDescriptor>,
}

impl Queue {
    /// `None`: the kernel makes no more for this user.
    pub fn new() -> Option<Self> {
        let flags = InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK;
        Inotify::init(flags).ok().map(Self::of)
    }

    fn of(inotify: Inotify) -> Self {
        Self {
            inotify,
            watches: BTreeSet::new(),
        }
    }

    /// One that an ended run has left, or a new one.
    pub fn for_a_run() -> Option<Self> {
        let idle = lock(&IDLE).pop();
        idle.or_else(Self::new)
    }

    /// Keeps it for another run; the one that had it must be over.
    pub fn keep(self) {
        lock(&IDLE).push(self);
    }

    /// `None`: the kernel watches no more for this user, or there is no such file.
    pub fn add(&mut self, path: &Path, what: AddWatchFlags) -> Option<WatchDescriptor> {
        let watch = self.inotify.add_watch(path, what).ok()?;
        self.watches.insert(watch);
        Some(watch)
    }

    /// What was told since the last call.
    pub fn events(&self) -> Vec<InotifyEvent> {
        let readings = std::iter::from_fn(|| self.inotify.read_events().ok());
        readings.take(READINGS).flatten().collect()
    }

    /// # Safety
    ///
    /// The descriptor is inotify's.
    pub unsafe fn from(descriptor: OwnedFd) -> Self {
        // SAFETY: the caller says what it is.
        Self::of(unsafe { Inotify::from_owned_fd(descriptor) })
    }
}

#[cfg(test)]
impl Queue {
    /// As it arrives in another process.
    pub fn twin(&self) -> Self {
        let descriptor = self.as_fd().try_clone_to_owned().unwrap();
        // SAFETY: it is inotify's.
        unsafe { Self::from(descriptor) }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for watch in &self.watches {
            // Fails where its file is gone.
            let _ = self.inotify.rm_watch(*watch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_watches_nothing_once_one_of_its_ends_has_gone() {
        let folder = tempfile::tempdir().unwrap();
        let stays = Queue::new().unwrap();
        let mut goes = stays.twin();
        goes.add(folder.path(), AddWatchFlags::IN_CREATE).unwrap();
        let _first = tempfile::NamedTempFile::new_in(folder.path()).unwrap();
        assert!(!stays.events().is_empty(), "one queue, two ends");
        drop(goes);
        // That the watch has ended is told as well.
        stays.events();
        let _second = tempfile::NamedTempFile::new_in(folder.path()).unwrap();
        assert!(stays.events().is_empty());
    }
}
