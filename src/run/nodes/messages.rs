//! What the nodes of a run say to its conductor, as lines of srun's standard output.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    net::TcpListener,
};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    run::spec::{RunExit, hostname},
};

/// srun passes lines of up to 1024 bytes on whole; these are characters of up to four bytes.
const CHUNK: usize = 200;
const MARK: &str = "tprimat-node";

/// What a node says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// It is what the run's key says, and waits for the others.
    Ready {
        /// As Slurm names the node.
        name: String,
        /// Where the others find it, and a port that was free there just now.
        address: String,
        port: u16,
    },
    /// Nothing can run there, and in words why.
    Refused {
        name: String,
        why: String,
    },
    Ended {
        name: String,
        exit: Box<RunExit>,
    },
}

impl Message {
    pub fn ready(name: &str) -> Result<Self> {
        let bound = TcpListener::bind(("0.0.0.0", 0)).and_then(|bound| bound.local_addr());
        Ok(Self::Ready {
            name: name.to_owned(),
            address: hostname().unwrap_or_else(|| name.to_owned()),
            port: bound
                .map_err(Error::io("cannot find a free port on", "0.0.0.0"))?
                .port(),
        })
    }

    /// Says it to the conductor.
    pub fn say(&self, node: usize) {
        let text: Vec<char> = serde_json::to_string(self)
            .unwrap_or_default()
            .chars()
            .collect();
        let mut chunks = text.chunks(CHUNK).peekable();
        let mut out = io::stdout().lock();
        while let Some(chunk) = chunks.next() {
            let (chunk, end) = (
                chunk.iter().collect::<String>(),
                if chunks.peek().is_some() { "…" } else { "." },
            );
            // Nobody reads it where the conductor is gone; then the lifeline is closed as well.
            let _ = writeln!(out, "{MARK} {node} {end} {chunk}");
        }
        let _ = out.flush();
    }
}

/// Puts the chunks of each node together again.
#[derive(Default)]
pub(super) struct Listener(BTreeMap<usize, String>);

impl Listener {
    pub fn hear(&mut self, line: &str) -> Option<(usize, Message)> {
        let mut parts = line.strip_prefix(MARK)?.strip_prefix(' ')?.splitn(3, ' ');
        let (node, end, chunk) = (parts.next()?.parse().ok()?, parts.next()?, parts.next()?);
        let text = self.0.entry(node).or_default();
        text.push_str(chunk);
        if end != "." {
            return None;
        }
        let text = self.0.remove(&node)?;
        Some((node, serde_json::from_str(&text).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_through_lines_of_srun_whole_whatever_stands_between() {
        let message = Message::Refused {
            name: "n1".into(),
            why: "größer ".repeat(200),
        };
        let text: Vec<char> = serde_json::to_string(&message).unwrap().chars().collect();
        let mut listener = Listener::default();
        let mut heard = Vec::new();
        let chunks = text.chunks(CHUNK).count();
        for (at, chunk) in text.chunks(CHUNK).enumerate() {
            let end = if at + 1 == chunks { "." } else { "…" };
            let line = format!("{MARK} 1 {end} {}", chunk.iter().collect::<String>());
            assert!(line.len() < 1024);
            heard.extend(listener.hear(&line));
            heard.extend(listener.hear("a prologue's greeting"));
        }
        assert_eq!(heard, [(1, message)]);
    }
}
