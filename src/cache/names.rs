//! Names of the files in a cache, which say what a record is before it is read.

use tprimat_base::digest::Digest;

pub(super) const RECORDS: &str = "records";
pub(super) const TEXTS: &str = "texts";
pub(super) const MADE: &str = "made";
pub(super) const ENDING: &str = ".json";

/// Nobody decides on one run, or measures one key anew, so often.
pub(super) const MOST_NUMBER: u32 = 1_000_000;
/// The longest id of a run: its file's name must fit any file system.
const LONGEST_ID: usize = 96;
/// Digits of a digest that tell apart what one number of decision says.
pub(super) const TAG: usize = 8;

/// What the name of a file below `records/KEY` says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Name {
    /// The run or the import of this id.
    Attempt(String),
    /// The decision of this number on a run. Of two with one number, made where caches did not
    /// know of each other, the one that sets aside stands.
    Mark {
        number: u32,
        is_aside: bool,
        /// The first digits of the digest of what the mark says. Two marks of one number that say
        /// different things thus have different names, and a merge of their caches keeps both.
        tag: String,
        id: String,
    },
    Generation(u32),
}

impl Name {
    pub(super) fn parse(name: &str) -> Option<Self> {
        let name = name.strip_suffix(ENDING)?;
        let parsed = if let Some(number) = name.strip_prefix("generation-") {
            Self::Generation(number.parse().ok()?)
        } else if let Some(mark) = name.strip_prefix("mark-") {
            let (number, mark) = mark.split_once('-')?;
            let (kind, mark) = mark.split_once('-')?;
            let (tag, id) = mark.split_once('-')?;
            Self::Mark {
                number: number.parse().ok()?,
                is_aside: match kind {
                    "aside" => true,
                    "restore" => false,
                    _ => return None,
                },
                tag: tag.to_owned(),
                id: id.to_owned(),
            }
        } else {
            Self::Attempt(name.to_owned())
        };
        let is_one = match &parsed {
            Self::Attempt(id) => is_id(id),
            Self::Mark {
                number, tag, id, ..
            } => is_id(id) && *number <= MOST_NUMBER && tag.len() == TAG,
            Self::Generation(number) => *number <= MOST_NUMBER,
        };
        // One name for each record: `mark-1-…` is none beside `mark-0001-…`.
        (is_one && parsed.file() == format!("{name}{ENDING}")).then_some(parsed)
    }

    /// What a decision is, without what tells it apart from others of its number.
    pub(super) fn said(&self) -> String {
        match self {
            Self::Mark {
                number,
                is_aside,
                id,
                ..
            } => {
                let kind = if *is_aside { "aside" } else { "restore" };
                format!("{kind} {number} {id}")
            }
            Self::Attempt(id) => id.clone(),
            Self::Generation(number) => format!("generation {number}"),
        }
    }

    pub(super) fn file(&self) -> String {
        match self {
            Self::Attempt(id) => format!("{id}{ENDING}"),
            Self::Mark {
                number,
                is_aside,
                tag,
                id,
            } => {
                let kind = if *is_aside { "aside" } else { "restore" };
                format!("mark-{number:04}-{kind}-{tag}-{id}{ENDING}")
            }
            Self::Generation(number) => format!("generation-{number:04}{ENDING}"),
        }
    }
}

/// Can a run be called so? The id becomes a file's name.
pub(super) fn is_id(id: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    !id.is_empty() && id.len() <= LONGEST_ID && !id.starts_with('.') && id.chars().all(is_plain)
}

/// A digest in the one spelling that names of files have.
pub(super) fn digest_of(name: &str) -> Option<Digest> {
    let digest: Digest = name.parse().ok()?;
    (digest.to_string() == name).then_some(digest)
}
