//! A figure as people read it, in whichever place it is shown.

use serde::Serialize;

use super::{format::MISSING, paint::Ink};

/// A figure as people read it.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Shown {
    pub text: String,
    /// In parentheses or below it: its interval, spread or kind.
    pub detail: Option<String>,
    /// What else is to be known of it.
    pub remarks: Vec<String>,
    /// What forbids putting it beside the baseline's.
    pub warning: Option<String>,
    /// What the column is sorted by.
    pub value: Option<f64>,
    /// Why there is no figure.
    pub reason: Option<String>,
    #[serde(skip)]
    pub ink: Ink,
    pub impossible: bool,
}

impl Shown {
    pub fn of(text: impl Into<String>, value: f64) -> Self {
        let text = text.into();
        Self {
            ink: if text == MISSING {
                Ink::Dim
            } else {
                Ink::Plain
            },
            text,
            value: Some(value).filter(|value| value.is_finite()),
            ..Self::default()
        }
    }

    pub fn inked(text: impl Into<String>, ink: Ink) -> Self {
        let text = text.into();
        Self {
            text,
            ink,
            ..Self::default()
        }
    }

    pub fn missing(reason: impl Into<String>) -> Self {
        Self {
            reason: Some(reason.into()),
            ..Self::inked(MISSING, Ink::Dim)
        }
    }

    pub fn impossible(reason: impl Into<String>) -> Self {
        Self {
            reason: Some(reason.into()),
            impossible: true,
            ..Self::inked("impossible", Ink::Alarm)
        }
    }

    pub fn detailed(self, detail: impl Into<Option<String>>) -> Self {
        Self {
            detail: detail.into(),
            ..self
        }
    }

    /// In one line: `1.23× (1.10–1.38), faster; precision: fp8, not bf16`.
    pub fn line(&self) -> String {
        let mut line = self.text.clone();
        if let Some(detail) = &self.detail {
            line += &format!(" ({detail})");
        }
        if !self.remarks.is_empty() {
            line += &format!(", {}", self.remarks.join("; "));
        }
        line
    }
}
