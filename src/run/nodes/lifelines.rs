//! What holds the supervisors of the nodes: srun, or in Kubernetes the supervisor of node 0 as a child and
//! a connection from each other pod, whose standard input it is. Nothing secret goes over these: a pod has the
//! environment from its Secret.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, ExitStatus},
    time::Duration,
};

use nix::{
    sys::{
        signal::{Signal, kill},
        socket::{setsockopt, sockopt},
    },
    unistd::{Pid, dup2_stdin},
};

use super::node::{self, Ready, address};
use crate::{
    error::{Error, Result},
    files::{self, Durability},
    run::{
        folder::read_if_there,
        inbox::{frame, settle_down},
    },
};

/// In the run folder: where the conductor listens.
const CONDUCTOR: &str = "conductor.json";
/// The conductor's first byte to a pod: it has this node.
const TAKEN: u8 = b'+';
/// A pod's last byte: its exit.json is written.
const GOODBYE: u8 = b'.';
/// How long a pod that has connected may take to say its number.
const HELLO: Duration = Duration::from_secs(2);
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
    /// By the number of the node. A second pod of a node, which Kubernetes may start, is sent away.
    connected: BTreeMap<usize, Pod>,
    nodes: usize,
}

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

    /// Has one of the pods gone without a word? One that has done its work says goodbye. srun sees to
    /// that itself.
    pub fn has_lost_one(&mut self) -> bool {
        let child = &mut self.child;
        self.pods.as_ref().is_some_and(|pods| {
            let has_failed = |ended: ExitStatus| !ended.success();
            let mut all = pods.connected.values();
            all.any(|pod| !pod.is_open && !pod.ended_well)
                || child
                    .try_wait()
                    .is_ok_and(|ended| ended.is_some_and(has_failed))
        })
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
        let place: Ready = (address(), port);
        let text = serde_json::to_vec(&place).unwrap_or_default();
        files::write_atomically(&dir.join(CONDUCTOR), &text, Durability::Plain)?;
        Ok(Self {
            listener,
            connected: BTreeMap::new(),
            nodes,
        })
    }

    /// Takes in who has come, and sees who has gone.
    fn look(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if let Ok((number, mut pod)) = welcome(stream)
                && (1..self.nodes).contains(&number)
                && let Entry::Vacant(place) = self.connected.entry(number)
                && pod.stream.write_all(&[TAKEN]).is_ok()
            {
                place.insert(pod);
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
}

fn welcome(mut stream: TcpStream) -> io::Result<(usize, Pod)> {
    watch(&stream)?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(HELLO))?;
    let mut number = [0; 8];
    stream.read_exact(&mut number)?;
    stream.set_nonblocking(true)?;
    let number = u64::from_le_bytes(number);
    let pod = Pod {
        stream,
        is_open: true,
        ended_well: false,
    };
    Ok((usize::try_from(number).unwrap_or(0), pod))
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
            let place: Ready = serde_json::from_slice(&text).unwrap_or_default();
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

fn connect((host, port): &Ready, number: usize) -> io::Result<TcpStream> {
    let bare = host.parse().map(|ip| SocketAddr::new(ip, *port));
    let mut stream = match bare {
        Ok(address) => TcpStream::connect_timeout(&address, Duration::from_secs(SILENCE.into()))?,
        Err(_) => TcpStream::connect((host.as_str(), *port))?,
    };
    watch(&stream)?;
    stream.write_all(&(number as u64).to_le_bytes())?;
    // Nothing comes where another pod of this node was first: it has answered already.
    stream.read_exact(&mut [0])?;
    Ok(stream)
}
