//! What holds the supervisors of the nodes: srun, or in Kubernetes the supervisor of node 0 as a child and
//! a connection from each other pod, whose standard input it is. Nothing secret goes over these: a pod has the
//! environment from its Secret. Whoever connects is a pod of the run if it knows the word that is in the run
//! folder, where only the run's user can read it; any other host of the network reaches the port as well.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    io::{self, Read, Write},
    mem,
    net::{TcpListener, TcpStream},
    path::Path,
    process::Child,
    time::{Duration, Instant},
};

use nix::{
    sys::{
        signal::{Signal, kill},
        socket::{setsockopt, sockopt},
    },
    unistd::{Pid, dup2_stdin},
};

use super::node::{self, address};
use crate::{
    error::{Error, Result},
    run::{
        folder::{make, read_if_there},
        inbox::{frame, settle_down},
        spec::attempt_id,
    },
};

/// In the run folder: where the conductor listens, and the word to say there.
const CONDUCTOR: &str = "conductor.json";
/// The conductor's first byte to a pod: it has this node.
const TAKEN: u8 = b'+';
/// A pod's last byte: its exit.json is written.
const GOODBYE: u8 = b'.';
/// How long a pod that has connected may take to say the word and its number.
const HELLO: Duration = Duration::from_secs(2);
/// So many are let in at a look, which with [`HELLO`] limits those that have said nothing yet.
const MOST_STRANGERS: usize = 64;
/// Between two attempts of a pod to find the conductor, whose own pod may still wait for a node.
const PAUSE: Duration = Duration::from_secs(1);
/// Seconds without an answer from the other host after which a connection counts as ended: a host that
/// has lost its power does not close its connections.
const SILENCE: u32 = 60;

pub(super) struct Lifelines {
    /// srun, or the supervisor of node 0.
    pub child: Child,
    pub pods: Option<Pods>,
}

/// The pods of the nodes other than 0.
pub(super) struct Pods {
    listener: TcpListener,
    /// What every pod of this run says first.
    word: String,
    /// Whoever has connected and said nothing yet, and when it came.
    strangers: Vec<(TcpStream, Instant)>,
    /// By the number of the node. A second pod of a node, which Kubernetes may start, is sent away.
    connected: BTreeMap<usize, Pod>,
    nodes: usize,
}

/// Where the conductor listens, and the word.
type Place = (String, u16, String);

struct Pod {
    stream: TcpStream,
    is_open: bool,
    ended_well: bool,
}

impl Lifelines {
    /// Tells it to all nodes. One that is gone is missed at its end.
    pub fn tell(&mut self, variables: &BTreeMap<String, String>) {
        let Ok(frame) = frame(variables) else { return };
        if let Some(stdin) = &mut self.child.stdin {
            let _ = stdin.write_all(&frame);
        }
        let pods = self.pods.iter_mut().flat_map(|pods| &mut pods.connected);
        for (_, pod) in pods {
            let _ = pod.stream.write_all(&frame);
        }
    }

    /// Have all supervisors ended, and if so, well?
    pub fn ended(&mut self) -> Option<bool> {
        if let Some(pods) = &mut self.pods {
            pods.look();
        }
        let child = self.child.try_wait().transpose()?;
        let ended_well = child.is_ok_and(|status| status.success());
        let Some(pods) = &self.pods else {
            return Some(ended_well);
        };
        let mut all = pods.connected.values();
        let is_over = all.clone().all(|pod| !pod.is_open);
        is_over.then(|| ended_well && all.all(|pod| pod.ended_well))
    }

    /// Which nodes have gone without a word? A pod that has done its work says goodbye. srun sees to that
    /// itself.
    pub fn lost(&mut self) -> BTreeSet<usize> {
        let Some(pods) = &self.pods else {
            return BTreeSet::new();
        };
        let pods = pods.connected.iter();
        let is_lost = |(_, pod): &(&usize, &Pod)| !pod.is_open && !pod.ended_well;
        let mut lost: BTreeSet<usize> = pods.filter(is_lost).map(|(node, _)| *node).collect();
        if let Ok(Some(ended)) = self.child.try_wait()
            && !ended.success()
        {
            lost.insert(0);
        }
        lost
    }

    /// Lets all nodes go: they end what they still do.
    pub fn end(&mut self) {
        drop(self.child.stdin.take());
        for pod in self.pods.iter().flat_map(|pods| pods.connected.values()) {
            let _ = pod.stream.shutdown(std::net::Shutdown::Write);
        }
    }

    /// Ends them without grace. srun then ends its step so.
    pub fn hurry(&mut self) {
        let signal = match self.pods {
            Some(_) => Signal::SIGQUIT,
            None => Signal::SIGTERM,
        };
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), signal);
        if self.pods.is_some() {
            self.end();
        }
    }
}

impl Pods {
    pub fn listen(dir: &Path, nodes: usize) -> Result<Self> {
        let broken = Error::io("cannot listen on", "0.0.0.0");
        let listener = TcpListener::bind(("0.0.0.0", 0)).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?.port(), listener))
        });
        let (port, listener) = listener.map_err(broken)?;
        let place: Place = (address(), port, attempt_id());
        let text = serde_json::to_vec(&place).unwrap_or_default();
        let path = dir.join(CONDUCTOR);
        make(&path, &text).map_err(Error::io("cannot write", path))?;
        Ok(Self {
            listener,
            word: place.2,
            strangers: Vec::new(),
            connected: BTreeMap::new(),
            nodes,
        })
    }

    /// Takes in who has come, and sees who has gone. Nobody who connects can hold it up.
    fn look(&mut self) {
        for _ in 0..MOST_STRANGERS {
            let Ok((stream, _)) = self.listener.accept() else {
                break;
            };
            if watch(&stream).is_ok() && stream.set_nonblocking(true).is_ok() {
                self.strangers.push((stream, Instant::now()));
            }
        }
        for (mut stream, came) in mem::take(&mut self.strangers) {
            match said(&mut stream, &self.word) {
                Ok(number) => self.welcome(number, stream),
                Err(why) if why.kind() == io::ErrorKind::WouldBlock && came.elapsed() < HELLO => {
                    self.strangers.push((stream, came));
                }
                Err(_) => {}
            }
        }
        for pod in self.connected.values_mut().filter(|pod| pod.is_open) {
            let mut byte = [0];
            match pod.stream.read(&mut byte) {
                Ok(1) => pod.ended_well = byte == [GOODBYE],
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                _ => pod.is_open = false,
            }
        }
    }

    fn welcome(&mut self, number: usize, mut stream: TcpStream) {
        if (1..self.nodes).contains(&number)
            && let Entry::Vacant(place) = self.connected.entry(number)
            && stream.write_all(&[TAKEN]).is_ok()
        {
            place.insert(Pod {
                stream,
                is_open: true,
                ended_well: false,
            });
        }
    }
}

/// What the pod of a node says when it has connected.
fn hello(word: &str, number: usize) -> Vec<u8> {
    [word.as_bytes(), &(number as u64).to_le_bytes()].concat()
}

/// The number of the node whose pod this is: `WouldBlock` where it has not said all of it yet.
fn said(stream: &mut TcpStream, word: &str) -> io::Result<usize> {
    let mut said = hello(word, 0);
    let length = said.len();
    match stream.peek(&mut said)? {
        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
        part if part < length => return Err(io::ErrorKind::WouldBlock.into()),
        _ => stream.read_exact(&mut said)?,
    }
    let number = said.split_off(word.len()).try_into();
    let number = number.map(u64::from_le_bytes).unwrap_or_default();
    match said == word.as_bytes() {
        true => Ok(usize::try_from(number).unwrap_or_default()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// The end of a host, whose kernel says nothing any more, ends its connections.
fn watch(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &(SILENCE / 2))?;
    setsockopt(stream, sockopt::TcpKeepInterval, &(SILENCE / 6))?;
    setsockopt(stream, sockopt::TcpKeepCount, &3)?;
    setsockopt(stream, sockopt::TcpUserTimeout, &(SILENCE * 1000))?;
    stream.set_nodelay(true)
}

/// The supervisor of a node that is the pod of a Job of its own.
pub(crate) fn supervise_pod(
    dir: &Path,
    number: usize,
    env: &BTreeMap<String, String>,
) -> Result<()> {
    let mut inbox = settle_down(false)?;
    let mut stream = loop {
        // Listed first, or a network file system may remember that the file was not there.
        let _ = std::fs::read_dir(dir).map(Iterator::count);
        if let Some(text) = read_if_there(&dir.join(CONDUCTOR))? {
            let place: Place = serde_json::from_slice(&text).unwrap_or_default();
            break connect(&place, number).map_err(Error::io("cannot reach", place.0))?;
        }
        inbox.wait(PAUSE);
        if inbox.stop() {
            return Err(Error::failed(
                "told to end before the pod of node 0 was there",
            ));
        }
    };
    dup2_stdin(&stream).map_err(|why| Error::failed(format!("cannot be conducted: {why}")))?;
    node::supervise(dir, number, Some(env))?;
    let _ = stream.write_all(&[GOODBYE]);
    Ok(())
}

fn connect((host, port, word): &Place, number: usize) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect((host.as_str(), *port))?;
    watch(&stream)?;
    stream.write_all(&hello(word, number))?;
    // Nothing comes where another pod of this node was first: it has answered already.
    stream.read_exact(&mut [0])?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes from the conductor on this connection; nothing where it is dropped.
    fn heard(pods: &mut Pods, mut stream: TcpStream) -> Vec<u8> {
        stream.set_nonblocking(true).unwrap();
        loop {
            pods.look();
            let mut heard = vec![0];
            match stream.read(&mut heard) {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                count => return heard[..count.unwrap_or_default()].to_vec(),
            }
        }
    }

    #[test]
    fn only_who_knows_the_word_of_the_run_takes_the_place_of_a_node() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mut pods = Pods::listen(folder.path(), 2).unwrap();
        let path = folder.path().join(CONDUCTOR);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "others of the volume cannot read it");
        let text = std::fs::read(path).unwrap();
        let (_, port, word): Place = serde_json::from_slice(&text).unwrap();
        let comes = |says: &[u8]| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.write_all(says).unwrap();
            stream
        };
        let _silent = comes(b"");
        let wrong = "x".repeat(word.len());
        assert_eq!(heard(&mut pods, comes(&hello(&wrong, 1))), b"");
        assert!(pods.connected.is_empty());
        let came = Instant::now();
        assert_eq!(heard(&mut pods, comes(&hello(&word, 1))), [TAKEN]);
        assert!(came.elapsed() < HELLO, "nobody waits for the silent one");
        // Another pod of this node, and one of a node that the run does not have.
        for number in [1, 2] {
            assert_eq!(heard(&mut pods, comes(&hello(&word, number))), b"");
        }
        assert_eq!(pods.connected.len(), 1);
    }
}
