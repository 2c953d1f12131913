//! Log bytes → [`Trace`]. One file a format; every one takes any bytes at all and never panics.
//!
//! Unaware of cells, jobs and files: what a log says is stated here, and judged in `analyze`.
mod classify;
mod events;
mod lines;
mod tprimat;
mod trace;

pub use classify::*;
pub use events::*;
pub use lines::MAX_LINE;
pub use trace::*;

/// Names that a recipe's `[log] format` may give.
pub const FORMATS: &[&str] = &["tprimat"];

/// What `log` says. An unknown format gives an empty trace with the anomaly `unknown_format`.
#[must_use]
pub fn parse(format: &str, log: &[u8]) -> Trace {
    match format {
        "tprimat" => tprimat::parse(log),
        other => Trace {
            format: other.to_owned(),
            anomalies: vec![Anomaly {
                kind: "unknown_format".to_owned(),
                detail: format!("no parser for \"{other}\"; known: {}", FORMATS.join(", ")),
            }],
            ..Trace::default()
        },
    }
}

/// The format that `log` is written in, judged by its first lines.
#[must_use]
pub fn detect(log: &[u8]) -> Option<&'static str> {
    tprimat::is_format(log).then_some("tprimat")
}

/// Reads a log while it grows, line by line, for the progress display.
#[derive(Debug, Default)]
pub struct Live {
    known_format: bool,
    last: u64,
}

impl Live {
    #[must_use]
    pub fn new(format: &str) -> Self {
        Self { known_format: FORMATS.contains(&format), last: 0 }
    }

    /// The newest step that `line` (with or without its line end) states, if it is further than any before.
    pub fn feed(&mut self, line: &[u8]) -> Option<Step> {
        if !self.known_format {
            return None;
        }
        let step = lines::lines(line).flat_map(|line| tprimat::steps(&line.text)).max_by_key(|step| step.step)?;
        if step.step <= self.last {
            return None;
        }
        self.last = step.step;
        Some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_reports_each_step_once_and_skips_what_other_ranks_repeat() {
        let mut live = Live::new("tprimat");
        assert_eq!(live.feed(b"loading weights\n"), None);
        let step = live.feed(b"[rank0]: {\"event\":\"step\",\"step\":1,\"loss\":2.5}\r\n").unwrap();
        assert_eq!((step.step, step.loss), (1, Some(2.5)));
        assert_eq!(live.feed(b"[rank1]: {\"event\":\"step\",\"step\":1,\"loss\":2.5}"), None);
        assert_eq!(live.feed(br#"{"event":"step","step":2}"#).map(|s| s.step), Some(2));
        assert_eq!(Live::new("megatron").feed(br#"{"event":"step","step":2}"#), None);
    }

    #[test]
    fn an_unknown_format_is_said_and_not_guessed() {
        let trace = parse("megatron", b"iteration 1/ 10");
        assert_eq!(trace.anomalies[0].kind, "unknown_format");
        assert!(trace.steps.is_empty());
    }

    #[test]
    fn detects_the_own_format_behind_noise_only() {
        assert_eq!(
            detect(b"warning: x\n[rank0]: {\"event\": \"start\", \"schema\": \"tprimat.events/1\"}\n"),
            Some("tprimat")
        );
        assert_eq!(detect(b"{\"event\": \"click\"}\n{\"loss\": 1}\n"), None);
        assert_eq!(detect(b""), None);
    }
}
