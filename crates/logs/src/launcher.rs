//! What torchrun says of the rank that failed first.

use super::FailureClass as Class;

/// Lines that one rank's report has before its traceback.
const LINES: u8 = 8;

/// The block below "Root Cause (first observed failure)".
#[derive(Default)]
pub struct Root {
    /// Lines of the block that may still come.
    open: u8,
    rank: Option<String>,
    host: Option<String>,
    exitcode: Option<i64>,
}

impl Root {
    pub fn begins(&mut self) {
        if self.exitcode.is_none() {
            self.open = LINES;
        }
    }

    pub fn line(&mut self, text: &str) {
        if self.open == 0 {
            return;
        }
        self.open -= 1;
        let Some((key, value)) = text.split_once(" : ") else {
            return;
        };
        let (key, value) = (key.rsplit(']').next().unwrap_or(key).trim(), value.trim());
        match key {
            "rank" => self.rank = Some(value.chars().take(40).collect()),
            "host" => self.host = Some(value.chars().take(80).collect()),
            "exitcode" => {
                self.exitcode = value
                    .split_whitespace()
                    .next()
                    .and_then(|code| code.parse().ok())
            }
            "traceback" => self.open = 0,
            _ => {}
        }
    }

    pub fn says(&self) -> Option<String> {
        let code = self.exitcode?;
        let rank = self.rank.as_deref().unwrap_or("unknown");
        let host = self
            .host
            .as_ref()
            .map(|host| format!(" on {host}"))
            .unwrap_or_default();
        Some(format!("root cause: rank {rank}{host}, exit code {code}"))
    }

    /// What the exit code alone tells.
    pub fn class(&self) -> Option<Class> {
        match self.exitcode? {
            -9 | 137 => Some(Class::Killed),
            126 | 127 => Some(Class::Launch),
            _ => None,
        }
    }
}
