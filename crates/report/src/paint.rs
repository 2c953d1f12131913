//! How text is shown: how wide, and with which colours. Colour only repeats what the words say.

use tprimat_numbers::figures::AbsentState;

/// Where text goes.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// In columns.
    pub width: usize,
    pub paint: Paint,
    /// Notes of little weight that are told before the rest is counted; all of them without a
    /// limit.
    pub most_notes: Option<usize>,
}

impl Page {
    /// A file: wide, plain and complete.
    #[must_use]
    pub const fn file() -> Self {
        Self {
            width: 160,
            paint: Paint::Plain,
            most_notes: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    Plain,
    Colour,
}

/// What a piece of text is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ink {
    #[default]
    Plain,
    /// Significantly faster.
    Good,
    /// Significantly slower, or not to be counted.
    Bad,
    /// Impossible or contradicted.
    Alarm,
    /// For what is not there.
    Dim,
    Strong,
}

impl Ink {
    /// What a cell without figures is shown in.
    pub(super) const fn of_state(state: AbsentState) -> Self {
        match state {
            AbsentState::Contradicted => Self::Alarm,
            AbsentState::Failed => Self::Bad,
            _ => Self::Dim,
        }
    }

    /// The sixteen colours that every terminal has, as its owner chose them.
    pub(super) const fn codes(self) -> (&'static str, &'static str) {
        match self {
            Self::Plain => ("", ""),
            Self::Good => ("\u{1b}[32m", "\u{1b}[39m"),
            Self::Bad => ("\u{1b}[31m", "\u{1b}[39m"),
            Self::Alarm => ("\u{1b}[1;31m", "\u{1b}[22;39m"),
            Self::Dim => ("\u{1b}[2m", "\u{1b}[22m"),
            Self::Strong => ("\u{1b}[1m", "\u{1b}[22m"),
        }
    }
}

impl Ink {
    /// Every escape that a table may hold.
    #[must_use]
    pub fn all_codes() -> Vec<&'static str> {
        let all = [Self::Good, Self::Bad, Self::Alarm, Self::Dim, Self::Strong];
        all.into_iter()
            .flat_map(|ink| <[_; 2]>::from(ink.codes()))
            .collect()
    }
}

impl Paint {
    /// The text in a colour, where colours are shown.
    #[must_use]
    pub fn ink(self, ink: Ink, text: &str) -> String {
        let (on, off) = ink.codes();
        if self == Self::Plain || ink == Ink::Plain {
            text.to_owned()
        } else {
            format!("{on}{text}{off}")
        }
    }
}
