//! What goes over a supervisor's lifeline, the socket between it and tprimat.
//!
//! | from | what | |
//! |---|---|---|
//! | tprimat | the run's folder, with its files as descriptors, then the environment | [`send_run`] |
//! | supervisor | a byte when it has the run, one when its processes are gone, one when it waits for the next run | [`Word`] |
//!
//! The end of the lifeline ends the supervisor, and its run with it.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::{ffi::OsStringExt, net::UnixStream},
    },
    path::{Path, PathBuf},
};

use nix::{
    cmsg_space,
    errno::Errno,
    libc,
    sys::socket::{
        ControlMessage, ControlMessageOwned, MsgFlags, getsockopt, recvmsg, send, sendmsg, sockopt,
    },
};

use super::input_watch::Queue;

/// No environment is larger; a length beyond it is not one that tprimat sent.
const ENVIRONMENT_LIMIT: u64 = 64 << 20;

/// What a supervisor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// It has the run that was sent, and sees it through.
    Has,
    /// The run's processes are gone, and only its record is still to be made.
    Gone,
    /// The run is recorded, nothing of it is left here, and another one may be sent.
    Ready,
}

impl Word {
    const ALL: [Self; 3] = [Self::Has, Self::Gone, Self::Ready];

    /// The next word from the other end; `None` where no more can come.
    pub fn receive(mut lifeline: &UnixStream) -> Option<Self> {
        let mut byte = [0];
        match lifeline.read(&mut byte) {
            Ok(1) => Self::ALL.get(usize::from(byte[0])).copied(),
            _ => None,
        }
    }

    /// Says it to tprimat, and waits for nobody to hear it. Does anybody still listen?
    pub fn say(self) -> bool {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        send(io::stdin().as_raw_fd(), &[self as u8], flags).is_ok()
    }
}

/// A run as it is sent to a supervisor.
pub(super) struct SentRun<'a> {
    pub dir: &'a Path,
    /// Its environment's [`frame`].
    pub env: &'a [u8],
    /// The supervisor's standard output. Locked, so there is no instant at which nobody holds it.
    pub lock: &'a File,
    /// Its standard error, appended to by the supervisor alone, line by line.
    pub log: &'a File,
    pub queue: Option<&'a Queue>,
}

/// Sends `run` to the supervisor at the other end, or to the one that will be there.
pub(super) fn send_run(mut lifeline: &UnixStream, run: &SentRun) -> io::Result<()> {
    let dir = run.dir.as_os_str().as_encoded_bytes();
    let length = (dir.len() as u64).to_le_bytes();
    let queue = run.queue.map(|queue| queue.as_fd().as_raw_fd());
    let descriptors: Vec<RawFd> = [run.lock.as_raw_fd(), run.log.as_raw_fd()]
        .into_iter()
        .chain(queue)
        .collect();
    let sent = sendmsg::<()>(
        lifeline.as_raw_fd(),
        &[IoSlice::new(&length)],
        &[ControlMessage::ScmRights(&descriptors)],
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    lifeline.write_all(&[&length[sent..], dir, run.env].concat())
}

/// Does the run fit into the socket, so that it can be sent before anybody reads?
pub(super) fn fits(lifeline: &UnixStream, run: &SentRun) -> io::Result<bool> {
    // The kernel counts its own bookkeeping as well, so that no more than a part of the room can be
    // filled.
    let room = getsockopt(lifeline, sockopt::SndBuf)?;
    Ok(run.env.len() + run.dir.as_os_str().len() <= room / 4)
}

/// A run that a supervisor was sent; its environment is still to come.
pub(super) struct ReceivedRun {
    pub dir: PathBuf,
    pub lock: OwnedFd,
    pub log: OwnedFd,
    pub queue: Option<Queue>,
}

/// A message of at most `bytes`, and three descriptors at most that came with it: how many bytes it
/// has, and the descriptors.
pub(super) fn receive_descriptors(
    from: BorrowedFd,
    bytes: &mut [u8],
) -> nix::Result<(usize, Vec<OwnedFd>)> {
    let mut space = cmsg_space!([RawFd; 3]);
    let mut bytes = [IoSliceMut::new(bytes)];
    let message = loop {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<()>(from.as_raw_fd(), &mut bytes, Some(&mut space), flags) {
            Err(Errno::EINTR) => {}
            message => break message?,
        }
    };
    let descriptors = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors = descriptors.unwrap_or_default().into_iter();
    // SAFETY: the kernel made them for this process with this message, and nobody else here has them.
    let owned = descriptors.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
    Ok((message.bytes, owned.collect()))
}

/// What [`send_run`] sent to the other end of `lifeline`; `None` once no more will come.
pub(super) fn receive_run(lifeline: BorrowedFd) -> io::Result<Option<ReceivedRun>> {
    let mut length = [0; 8];
    let (received, descriptors) = receive_descriptors(lifeline, &mut length)?;
    let mut descriptors = descriptors.into_iter();
    let (Some(lock), Some(log)) = (descriptors.next(), descriptors.next()) else {
        return Ok(None);
    };
    // SAFETY: tprimat sends nothing but inotify's descriptors in this place.
    let queue = descriptors
        .next()
        .map(|queue| unsafe { Queue::from(queue) });
    let mut lifeline = reader(lifeline)?;
    lifeline.read_exact(&mut length[received..])?;
    let length = u64::from_le_bytes(length);
    if length > libc::PATH_MAX as u64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut dir = Vec::new();
    lifeline.take(length).read_to_end(&mut dir)?;
    Ok(Some(ReceivedRun {
        dir: OsString::from_vec(dir).into(),
        lock,
        log,
        queue,
    }))
}

/// An environment as it is sent: first the length in 8 bytes, then JSON.
pub(super) fn frame(env: &BTreeMap<String, String>) -> io::Result<Vec<u8>> {
    let text = serde_json::to_vec(env)?;
    let length = (text.len() as u64).to_le_bytes();
    Ok([&length[..], &text].concat())
}

/// What the other end of standard input sends as one [`frame`].
pub(super) fn receive_environment() -> io::Result<BTreeMap<String, String>> {
    let mut lifeline = reader(io::stdin().as_fd())?;
    let mut length = [0; 8];
    lifeline.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > ENVIRONMENT_LIMIT {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut text = Vec::new();
    lifeline.take(length).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Reads no byte more than it is asked for.
fn reader(lifeline: BorrowedFd) -> io::Result<File> {
    lifeline.try_clone_to_owned().map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_arrives_as_it_was_sent_and_the_next_one_behind_it() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let env = frame(&BTreeMap::from([("A".to_owned(), "b c".to_owned())])).unwrap();
        for (dir, queue) in [("/runs/first", Queue::new()), ("/runs/second", None)] {
            let run = SentRun {
                dir: Path::new(dir),
                env: &env,
                lock: &file,
                log: &file,
                queue: queue.as_ref(),
            };
            assert!(fits(&ours, &run).unwrap());
            send_run(&ours, &run).unwrap();
        }
        for (dir, has_queue) in [("/runs/first", true), ("/runs/second", false)] {
            let received = receive_run(theirs.as_fd()).unwrap().unwrap();
            assert_eq!(received.dir, Path::new(dir));
            assert_eq!(received.queue.is_some(), has_queue);
            let mut arrived = vec![0; env.len()];
            (&theirs).read_exact(&mut arrived).unwrap();
            assert_eq!(arrived, env);
        }
        drop(ours);
        assert!(receive_run(theirs.as_fd()).unwrap().is_none());
    }

    #[test]
    fn words_are_known_by_their_bytes() {
        for (byte, word) in Word::ALL.into_iter().enumerate() {
            assert_eq!(byte, word as usize);
        }
    }
}
