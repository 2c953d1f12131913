//! Why something is as it is: in a code and values for programs, and in a sentence for people.

use std::{borrow::Cow, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a reason does to the figures that it stands beside.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// It is in the details, for whoever looks for it.
    Detail,
    /// It stands beside the figures, because it may change what a reader concludes.
    Beside,
    /// The figures stand, and nothing is concluded from them.
    NoVerdict,
    /// There is no figure, or it does not count.
    Excludes,
}

/// Why something is as it is, written where it is found. Programs read `code`, `severity` and
/// `values`; nothing is decided by the text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Reason {
    pub code: Cow<'static, str>,
    pub severity: Severity,
    /// The numbers and names in the text, by their names.
    /// Boxed, since a reason is the error of many functions.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub values: Box<Map<String, Value>>,
    /// Without a capital and a full stop, for it may follow a name or stand in a list.
    pub text: String,
}

fn is_empty(values: &Map<String, Value>) -> bool {
    values.is_empty()
}

/// The code of a sentence that came without one.
const STATED: &str = "stated";

impl Reason {
    pub fn new(
        severity: Severity,
        code: impl Into<Cow<'static, str>>,
        text: impl Into<String>,
    ) -> Self {
        Self {
            code: code.into(),
            severity,
            values: Box::default(),
            text: text.into(),
        }
    }

    #[must_use]
    pub fn detail(code: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::Detail, code, text)
    }

    #[must_use]
    pub fn beside(code: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::Beside, code, text)
    }

    #[must_use]
    pub fn no_verdict(code: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::NoVerdict, code, text)
    }

    #[must_use]
    pub fn excludes(code: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::Excludes, code, text)
    }

    /// What somebody else says in a sentence of his own.
    #[must_use]
    pub fn stated(text: impl Into<String>) -> Self {
        Self::excludes(STATED, text)
    }

    /// Adds a value of the text.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.values.insert(name.to_owned(), value.into());
        self
    }

    #[must_use]
    pub fn is(&self, code: &str) -> bool {
        self.code == code
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self::stated(text)
    }
}

impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        Self::stated(text)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_survives_json() {
        let reason = Reason::no_verdict("few_units", "2 repeats").with("n", 2);
        let text = serde_json::to_string(&reason).unwrap();
        assert_eq!(serde_json::from_str::<Reason>(&text).unwrap(), reason);
        assert!(Severity::Detail < Severity::Beside && Severity::NoVerdict < Severity::Excludes);
    }
}
