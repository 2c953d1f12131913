//! The kernel's queue of events for one run, and its way from tprimat to the run's supervisor.
//!
//! Closing a queue that has watched something takes the kernel about 10 ms, longer than many a short
//! run, and whoever has it open last waits for that. So tprimat keeps the queues of ended runs, and
//! hands them to the runs that follow.

use std::{
    collections::BTreeSet,
    io::{self, IoSlice, IoSliceMut},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::Mutex,
};

use nix::{
    cmsg_space,
    sys::{
        inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor},
        socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg},
    },
};

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

    /// One byte over the run's lifeline, and with it the queue, if there is one.
    pub fn send(queue: Option<&Self>, lifeline: &UnixStream) -> io::Result<()> {
        let descriptors: Vec<RawFd> = queue
            .iter()
            .map(|queue| queue.as_fd().as_raw_fd())
            .collect();
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let control = if descriptors.is_empty() {
            &[]
        } else {
            &rights[..]
        };
        let byte = [IoSlice::new(&[0])];
        sendmsg::<()>(
            lifeline.as_raw_fd(),
            &byte,
            control,
            MsgFlags::empty(),
            None,
        )?;
        Ok(())
    }

    /// What [`Queue::send`] sent to the other end of `lifeline`.
    pub fn receive(lifeline: BorrowedFd) -> io::Result<Option<Self>> {
        let (mut byte, mut space) = ([0], cmsg_space!(RawFd));
        let mut bytes = [IoSliceMut::new(&mut byte)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(lifeline.as_raw_fd(), &mut bytes, Some(&mut space), flags)?;
        if message.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let descriptor = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
            _ => None,
        });
        Ok(descriptor.map(|descriptor| {
            // SAFETY: the kernel made it for this process with this message, and nobody else here
            // has it.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            // SAFETY: tprimat sends nothing but inotify's descriptors.
            Self::of(unsafe { Inotify::from_owned_fd(descriptor) })
        }))
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
    fn a_queue_reaches_the_other_end_and_watches_nothing_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let ours_stays = Queue::new().unwrap();
        Queue::send(Some(&ours_stays), &ours).unwrap();
        let mut arrived = Queue::receive(theirs.as_fd()).unwrap().unwrap();
        arrived
            .add(folder.path(), AddWatchFlags::IN_CREATE)
            .unwrap();
        tempfile::tempfile_in(folder.path()).unwrap();
        let _first = tempfile::NamedTempFile::new_in(folder.path()).unwrap();
        assert!(!ours_stays.events().is_empty(), "one queue, two ends");
        drop(arrived);
        // That the watch has ended is told as well.
        ours_stays.events();
        let _second = tempfile::NamedTempFile::new_in(folder.path()).unwrap();
        assert!(ours_stays.events().is_empty());

        Queue::send(None, &ours).unwrap();
        assert!(Queue::receive(theirs.as_fd()).unwrap().is_none());
        drop(ours);
        assert!(Queue::receive(theirs.as_fd()).is_err());
    }
}
