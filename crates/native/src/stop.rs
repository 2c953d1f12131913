//! Why the trainer stops early, and with which exit code.

use std::{io, path::PathBuf};

use tch::TchError;
use tprimat_job::{FailureClass, exit};

use crate::ranks::launch::FOLLOWS;

#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The job asks for what this trainer does not do, or the host lacks what it needs; nothing was
    /// trained.
    #[error("{0}")]
    Refused(String),
    #[error("{} {}: {source}", .what, .path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the dataset cannot be trained on: {0}")]
    Data(String),
    #[error("the loss is not a number at step {0}")]
    NanLoss(u64),
    /// Another rank has ended, and knows why.
    #[error("lost the connection to another rank: {0}")]
    Lost(io::Error),
    #[error("{}", first_line(.0))]
    Torch(TchError),
    #[error("some kernels do not compute what float64 computes; the list is above")]
    SelfTest,
    #[error("cannot write events: {0}")]
    Output(#[from] io::Error),
}

/// Only the exchange between ranks reads and writes where libtorch's errors are returned.
impl From<TchError> for Stop {
    fn from(error: TchError) -> Self {
        match error {
            TchError::Io(error) => Self::Lost(error),
            other => Self::Torch(other),
        }
    }
}

impl Stop {
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Refused(_) | Self::File { .. } | Self::Data(_) => exit::USAGE,
            Self::Lost(_) => i32::from(FOLLOWS),
            Self::NanLoss(_) | Self::SelfTest | Self::Torch(_) | Self::Output(_) => exit::FAILED,
        }
    }

    pub fn class(&self) -> FailureClass {
        match self {
            Self::Refused(_) | Self::File { .. } | Self::Data(_) => FailureClass::Launch,
            Self::NanLoss(_) => FailureClass::Nan,
            Self::Torch(error) if is_out_of_memory(&error.to_string()) => FailureClass::Oom,
            Self::Lost(_) | Self::Torch(_) | Self::SelfTest | Self::Output(_) => {
                FailureClass::Unknown
            }
        }
    }
}

/// The words of the CUDA, HIP and CPU allocators of PyTorch.
fn is_out_of_memory(message: &str) -> bool {
    message.contains("out of memory") || message.contains("can't allocate memory")
}

/// PyTorch's messages carry a C++ stack below their first line.
fn first_line(error: &TchError) -> String {
    error
        .to_string()
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocator_messages_are_out_of_memory() {
        let cuda = "CUDA out of memory. Tried to allocate 20.00 GiB.\nException raised from malloc";
        let cpu = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory";
        for message in [cuda, cpu] {
            assert_eq!(
                Stop::Torch(TchError::Torch(message.into())).class(),
                FailureClass::Oom
            );
        }
        let other = Stop::Torch(TchError::Torch(
            "expected scalar type Float\nat somewhere".into(),
        ));
        assert_eq!(other.class(), FailureClass::Unknown);
        assert_eq!(
            other.to_string(),
            "Internal torch error: expected scalar type Float"
        );
    }
}
