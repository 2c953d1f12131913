//! Events as JSON lines on stdout: start, step, end, error.

use std::{
    io::{self, Write},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value, json};
use tprimat_job::FailureClass;

pub const SCHEMA: &str = "tprimat.events/1";

pub struct Events<W>(pub W);

impl<W: Write> Events<W> {
    pub fn start(&mut self, mut fields: Map<String, Value>) -> io::Result<()> {
        let mut line = head("start");
        line.insert("schema".to_owned(), SCHEMA.into());
        line.insert("trainer".to_owned(), "tprimat-native".into());
        line.append(&mut fields);
        self.write(&line)
    }

    pub fn step(&mut self, mut fields: Map<String, Value>) -> io::Result<()> {
        let mut line = head("step");
        line.append(&mut fields);
        self.write(&line)
    }

    pub fn checkpoint(&mut self, step: u64, path: &Path, seconds: f64) -> io::Result<()> {
        let mut line = head("checkpoint");
        line.insert("step".to_owned(), step.into());
        line.insert("path".to_owned(), path.to_string_lossy().into());
        line.insert("seconds".to_owned(), seconds.into());
        self.write(&line)
    }

    pub fn end(&mut self, steps: u64) -> io::Result<()> {
        let mut line = head("end");
        line.insert("status".to_owned(), "ok".into());
        line.insert("steps".to_owned(), steps.into());
        self.write(&line)
    }

    pub fn error(&mut self, class: FailureClass, message: &str) -> io::Result<()> {
        let mut line = head("error");
        line.insert("class".to_owned(), class.name().into());
        line.insert("message".to_owned(), message.into());
        self.write(&line)
    }

    /// One line, whole and at once: whoever follows the log sees each step when it ends.
    fn write(&mut self, line: &Map<String, Value>) -> io::Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        self.0.write_all(text.as_bytes())?;
        self.0.flush()
    }
}

/// Seconds since 1970.
fn unix_now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

fn head(event: &str) -> Map<String, Value> {
    let mut line = Map::new();
    line.insert("event".to_owned(), event.into());
    line.insert("time".to_owned(), json!(unix_now()));
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_object_a_line() {
        let mut events = Events(Vec::new());
        events.end(3).unwrap();
        events.error(FailureClass::Oom, "two\nlines").unwrap();
        let text = String::from_utf8(events.0).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        assert_eq!(
            (lines[0]["event"].as_str(), lines[0]["steps"].as_u64()),
            (Some("end"), Some(3))
        );
        assert_eq!(
            (lines[1]["class"].as_str(), lines[1]["message"].as_str()),
            (Some("oom"), Some("two\nlines"))
        );
    }
}
