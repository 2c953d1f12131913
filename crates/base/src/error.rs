//! What can go wrong, and which exit code says so.
//!
//! Bad input is collected as [`Problem`]s, so that one run reports all of them; everything else is
//! one [`Error`]. Stages return these; only `cli` renders them, with miette.

use std::{fmt, io, ops::Range, path::PathBuf, sync::Arc};

pub use crate::words::{did_you_mean, nearest};
pub use tprimat_job::exit;

/// A text that people wrote, kept for the carets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// As the user would name it: relative to the project root where possible.
    pub name: String,
    pub text: String,
}

impl Source {
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            text: text.into(),
        })
    }
}

/// One thing wrong with the input: what, where (file and byte range), and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub message: String,
    pub place: Option<(Arc<Source>, Range<usize>)>,
    /// Stands under the caret.
    pub label: String,
    pub help: Option<String>,
}

impl Problem {
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            place: None,
            label: String::new(),
            help: None,
        }
    }
    #[must_use]
    pub fn at(
        mut self,
        source: &Arc<Source>,
        span: Range<usize>,
        label: impl Into<String>,
    ) -> Self {
        self.place = Some((source.clone(), span));
        self.label = label.into();
        self
    }
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
    /// `file:line:column`, counted from 1, where the place is known.
    #[must_use]
    pub fn position(&self) -> Option<(String, usize, usize)> {
        let (source, span) = self.place.as_ref()?;
        let before = source.text.get(..span.start.min(source.text.len()))?;
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        Some((source.name.clone(), line, column))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position() {
            Some((file, line, column)) => write!(f, "{file}:{line}:{column}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input is wrong; never empty.
    #[error("{}", .0.first().map_or_else(String::new, ToString::to_string))]
    Invalid(Vec<Problem>),
    /// A selection matched no cell.
    #[error("{message}")]
    NothingSelected {
        message: String,
        help: Option<String>,
    },
    /// The file system said no.
    #[error("{what} {}: {source}", .path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The error of one stage, which has a type of its own: what the command needs cannot be used
    /// as it is.
    #[error(transparent)]
    Stage(Box<dyn std::error::Error + Send + Sync>),
    /// One file of what was kept is lost, or cannot be read: whatever needs it fails, and nothing
    /// else.
    #[error(transparent)]
    Lost(Box<dyn std::error::Error + Send + Sync>),
    /// What should be impossible.
    #[error("{0}; this is a mistake in tprimat")]
    Internal(String),
    /// Anything a run of the tool ends with that is not the input's fault.
    #[error("{message}")]
    Failed {
        message: String,
        help: Option<String>,
    },
    #[error("interrupted")]
    Interrupted(i32),
}

impl Error {
    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
    pub fn stage(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Stage(Box::new(error))
    }
    /// A run of the tool ends here, and there is nothing more to say than why.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed {
            message: message.into(),
            help: None,
        }
    }
    /// The same, with what to do about it.
    pub fn failed_with(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self::Failed {
            message: message.into(),
            help: Some(help.into()),
        }
    }
    /// A selection or a name matches nothing.
    pub fn nothing(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self::NothingSelected {
            message: message.into(),
            help: Some(help.into()),
        }
    }
    pub fn invalid(problem: Problem) -> Self {
        Self::Invalid(vec![problem])
    }
    /// The input is wrong in one way that has no place in a file.
    pub fn refused(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self::invalid(Problem::new(message).help(help))
    }
    /// What to do about it, where that is known.
    #[must_use]
    pub fn help(&self) -> Option<&str> {
        match self {
            Self::Invalid(problems) => problems.iter().find_map(|problem| problem.help.as_deref()),
            Self::NothingSelected { help, .. } | Self::Failed { help, .. } => help.as_deref(),
            Self::Io { .. }
            | Self::Stage(_)
            | Self::Lost(_)
            | Self::Internal(_)
            | Self::Interrupted(_) => None,
        }
    }
    /// The process exit code that stands for this error.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Invalid(_) | Self::Stage(_) => exit::USAGE,
            Self::NothingSelected { .. } => exit::NOTHING_SELECTED,
            Self::Io { source, .. } if is_lasting(source) => exit::USAGE,
            Self::Io { .. } | Self::Lost(_) | Self::Failed { .. } | Self::Internal(_) => {
                exit::FAILED
            }
            Self::Interrupted(signal) => 128 + signal,
        }
    }
}

/// Errors that the same command would meet again: the set-up is wrong, not the run.
fn is_lasting(error: &io::Error) -> bool {
    use io::ErrorKind::{
        InvalidData, IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem,
    };
    // `InvalidData`: a text that is not UTF-8.
    matches!(
        error.kind(),
        NotFound
            | PermissionDenied
            | ReadOnlyFilesystem
            | NotADirectory
            | IsADirectory
            | InvalidData
    )
}
