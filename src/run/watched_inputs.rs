//! What a run reads outside its own folder: files of the project, data, checkouts, the trainer that
//! ships with tprimat.
//!
//! The plan knows them by content, but a run reads what is there when it gets to it, perhaps hours
//! later. So the supervisor looks at them right before the trainer starts, at files every second while
//! it runs, and when it has ended, also if its tprimat is dead by then. A run whose inputs had another
//! content at one of these looks is kept and not counted. A `touch`, or the same bytes written again,
//! changes nothing. Not seen is an edit that is taken back within a second, or before the end in a
//! checkout; of a file it is told that it was written.

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    cache::{MOST_TEXT, Undeclared, inputs_line},
    digest::Digest,
    files::{self, Known, Stamp},
    host,
    plan::DataKind,
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Watched {
    /// For people: `train.py`, `the dataset c4`.
    pub name: String,
    path: PathBuf,
    content: Content,
    /// Stamps of the files that hold the content, taken when it was seen to be the planned one; empty
    /// until then.
    stamps: Vec<Stamp>,
    /// Nobody declares it: the command names it, and it may as well be what the run writes.
    pub is_guessed: bool,
    /// It had another content when it was looked at during the run.
    #[serde(skip)]
    is_changed: bool,
    /// It was written or touched, as a look during the run saw.
    #[serde(skip)]
    was_touched: bool,
}

/// As the plan has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    File(Digest),
    /// A file that the command names and that is not there yet.
    Nothing,
    Data {
        kind: DataKind,
        digest: Digest,
    },
    Checkout {
        file: String,
        facts: BTreeMap<String, String>,
    },
}

impl Watched {
    /// `stamps`: of the files that hold the content, where they were read before.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        path: PathBuf,
        content: Content,
        stamps: Vec<Stamp>,
    ) -> Self {
        Self {
            name: name.into(),
            path,
            stamps,
            is_guessed: matches!(content, Content::Nothing),
            content,
            is_changed: false,
            was_touched: false,
        }
    }

    pub(crate) fn is_absent(&self) -> bool {
        matches!(self.content, Content::Nothing)
    }

    /// The bytes of a small file as planned, kept in the cache so that a later measurement can be held
    /// against this one line by line. What others of this host cannot read stays where it is.
    #[must_use]
    pub fn small_content(&self) -> Option<Vec<u8>> {
        let Content::File(digest) = &self.content else {
            return None;
        };
        let metadata = self.path.symlink_metadata().ok()?;
        let is_open = metadata.is_file() && metadata.mode() & 0o044 != 0;
        if !is_open || metadata.len() > MOST_TEXT {
            return None;
        }
        let bytes = files::read_bounded(&self.path, MOST_TEXT).ok()?;
        (Digest::of(&bytes) == *digest).then_some(bytes)
    }

    /// Is the content as planned, right before a start? A file that was written again with the same
    /// bytes is.
    pub fn is_as_planned(&mut self) -> bool {
        if self.is_absent() {
            // Another run may have made it just now, as this one will.
            return true;
        }
        let Some(now) = self.stamps_now() else {
            return false;
        };
        let is_planned = self.is_untouched(&now) || self.holds_what_was_planned();
        if is_planned {
            self.stamps = now;
        }
        is_planned
    }

    /// Looks at a file during the run; its bytes are read only if it was written. True where it has,
    /// or had at an earlier look, another content.
    pub fn look(&mut self) -> bool {
        if self.is_changed || !matches!(self.content, Content::File(_)) {
            return self.is_changed;
        }
        let now = self.stamps_now();
        if !now.as_ref().is_some_and(|now| self.is_same(now)) {
            self.was_touched = true;
            self.is_changed = !self.holds_what_was_planned();
            self.stamps = now.unwrap_or_default();
        }
        self.is_changed
    }

    /// Has it, or had it at a look during the run, another content than the plan has? Of what was
    /// not there: is it now?
    pub(crate) fn is_written(&self) -> bool {
        if self.is_absent() {
            return self.path.is_file();
        }
        let is_untouched = || self.stamps_now().is_some_and(|now| self.is_untouched(&now));
        self.is_changed || !is_untouched() && !self.holds_what_was_planned()
    }

    /// Was it written, renamed, linked or touched since the look before the start?
    fn is_touched(&self) -> bool {
        let is_same = || self.stamps_now().is_some_and(|now| self.is_same(&now));
        self.was_touched || !self.is_absent() && !self.files().is_empty() && !is_same()
    }

    fn is_same(&self, now: &[Stamp]) -> bool {
        let mut pairs = self.stamps.iter().zip(now);
        self.stamps.len() == now.len() && pairs.all(|(then, now)| then.is_same(now))
    }

    fn is_untouched(&self, now: &[Stamp]) -> bool {
        !now.is_empty() && self.is_same(now) && self.stamps.iter().all(Stamp::is_settled)
    }

    /// The files that hold it. A checkout has none: too many files, and git knows them better.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        match &self.content {
            Content::File(_) | Content::Nothing => vec![self.path.clone()],
            Content::Data { kind, .. } => kind.files(&self.path),
            Content::Checkout { .. } => Vec::new(),
        }
    }

    /// `None`: a file is gone.
    fn stamps_now(&self) -> Option<Vec<Stamp>> {
        let files = self.files();
        files.iter().map(|file| Stamp::of(file).ok()).collect()
    }

    fn holds_what_was_planned(&self) -> bool {
        match &self.content {
            Content::File(digest) => {
                Known::of(&self.path).is_ok_and(|known| known.digest == *digest)
            }
            Content::Nothing => !self.path.is_file(),
            Content::Data { kind, digest } => kind
                .fingerprint(&self.path)
                .is_ok_and(|found| found == *digest),
            Content::Checkout { file, facts } => {
                host::checkout_facts(&self.path, file).is_ok_and(|found| found == *facts)
            }
        }
    }
}

/// Names of what is not as planned.
pub fn outdated(watched: &mut [Watched]) -> Vec<String> {
    watched
        .iter_mut()
        .filter_map(|one| (!one.is_as_planned()).then(|| one.name.clone()))
        .collect()
}

/// What was written while a run ran, by name.
#[derive(Debug, Default)]
pub struct Written {
    /// Declared inputs that have another content now.
    pub changed: Vec<String>,
    /// Files that only the command names.
    pub undeclared: Undeclared,
    /// What was touched, and has the planned content.
    pub touched: Vec<String>,
}

pub fn written(watched: &[Watched]) -> Written {
    let mut written = Written::default();
    for one in watched {
        let of = match (one.is_written(), one.is_guessed, one.is_absent()) {
            (true, true, true) => &mut written.undeclared.made,
            (true, true, false) => &mut written.undeclared.changed,
            (true, false, _) => &mut written.changed,
            (false, ..) if one.is_touched() => &mut written.touched,
            (false, ..) => continue,
        };
        of.push(one.name.clone());
    }
    written
}

/// Why nothing is started when these have another content than the plan has, and what to do.
pub fn not_started(changed: &[String], watched: &[Watched]) -> String {
    let guessed: Vec<String> = watched
        .iter()
        .filter(|one| one.is_guessed && changed.contains(&one.name))
        .map(|one| one.name.clone())
        .collect();
    let advice = match guessed.is_empty() {
        true => String::new(),
        false => format!(
            "; if the runs write it themselves, say so: {}",
            inputs_line(&guessed, "!")
        ),
    };
    format!(
        "not started: {} changed after this build was planned; build again{advice}",
        changed.join(", ")
    )
}

/// The trainer that ships with tprimat must be the one that keys name: built from the sources that
/// this tprimat knows, whose digest is in its program. Else: what is wrong with it.
pub fn check_native(path: &Path, code: &str) -> Result<Watched, String> {
    let known = Known::of(path).map_err(|e| e.to_string())?;
    let program = files::read(path).map_err(|e| e.to_string())?;
    if memchr::memmem::find(&program, code.as_bytes()).is_none() {
        return Err("it was not built from the sources of this tprimat".into());
    }
    Ok(Watched::new(
        "tprimat-native",
        path.to_owned(),
        Content::File(known.digest),
        vec![known.stamp],
    ))
}

#[cfg(test)]
mod tests {
    use std::{fs, thread, time::Duration};

    use super::*;
    use crate::{
        data::Dtype,
        dataset_for_tests::write_dataset,
        files::{Durability, write_atomically},
    };

    fn watched(path: &Path) -> Watched {
        let mut one = Watched::new(
            "file",
            path.to_owned(),
            Content::File(Digest::of("planned")),
            Vec::new(),
        );
        write_atomically(path, b"planned", Durability::Plain).unwrap();
        assert!(one.is_as_planned() && !one.is_written());
        one
    }

    #[test]
    fn before_a_start_the_bytes_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut one = watched(&path);
        write_atomically(&path, b"planned", Durability::Plain).unwrap();
        assert!(one.is_as_planned());
        write_atomically(&path, b"another", Durability::Plain).unwrap();
        assert_eq!(outdated(std::slice::from_mut(&mut one)), ["file"]);
        fs::remove_file(&path).unwrap();
        assert!(!one.is_as_planned());
    }

    #[test]
    fn after_a_run_content_counts_and_a_touch_is_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let one = watched(&path);
        let seen = || written(std::slice::from_ref(&one));
        // The clock of a file system may be coarse.
        thread::sleep(Duration::from_millis(20));
        assert!(seen().touched.is_empty() && seen().changed.is_empty());
        write_atomically(&path, b"another", Durability::Plain).unwrap();
        assert_eq!((seen().changed.len(), seen().touched.len()), (1, 0));
        write_atomically(&path, b"planned", Durability::Plain).unwrap();
        assert_eq!(
            (seen().changed.len(), seen().touched.len()),
            (0, 1),
            "put back"
        );
        fs::remove_file(&path).unwrap();
        assert!(one.is_written());
        write_atomically(&path, b"planned", Durability::Plain).unwrap();
        // A look in between sees it, whatever is there in the end.
        let mut one = one;
        write_atomically(&path, b"another", Durability::Plain).unwrap();
        assert!(one.look());
        write_atomically(&path, b"planned", Durability::Plain).unwrap();
        assert!(one.look() && one.is_written());
        // A link or a mode is no edit.
        let one = watched(&path);
        fs::hard_link(&path, folder.path().join("link")).unwrap();
        assert!(!one.is_written());
    }

    fn dataset(prefix: &Path, tokens: &[i64]) {
        write_dataset(prefix, Dtype::U16, &[vec![tokens.to_vec()]]);
    }

    #[test]
    fn a_dataset_is_the_planned_one_by_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("d");
        dataset(&prefix, &[1, 2, 3]);
        let digest = DataKind::Dataset.fingerprint(&prefix).unwrap();
        let content = Content::Data {
            kind: DataKind::Dataset,
            digest,
        };
        let mut data = Watched::new("the dataset d", prefix.clone(), content, Vec::new());
        assert!(data.is_as_planned() && !data.is_written());
        dataset(&prefix, &[1, 2, 3]);
        assert!(
            !data.is_written() && data.is_as_planned(),
            "written anew, and the same"
        );
        dataset(&prefix, &[1, 2, 4]);
        assert_eq!(
            (data.is_written(), outdated(&mut [data])),
            (true, vec!["the dataset d".to_owned()])
        );
    }

    #[test]
    fn a_checkout_is_the_planned_one_by_its_facts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("train.py");
        write_atomically(&file, b"one", Durability::Plain).unwrap();
        let facts = host::checkout_facts(folder.path(), "train.py").unwrap();
        let content = Content::Checkout {
            file: "train.py".into(),
            facts,
        };
        let folder = folder.path().to_owned();
        let mut checkout = Watched::new("the checkout", folder, content, Vec::new());
        assert!(checkout.is_as_planned() && !checkout.is_written());
        write_atomically(&file, b"two", Durability::Plain).unwrap();
        assert!(!checkout.is_as_planned() && checkout.is_written());
    }

    #[test]
    fn a_trainer_of_other_sources_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tprimat-native");
        let (own, other) = (
            Digest::of("own").to_string(),
            Digest::of("other").to_string(),
        );
        write_atomically(&path, format!("\x7fELF{own}").as_bytes(), Durability::Plain).unwrap();
        assert!(check_native(&path, &own).is_ok());
        let why = check_native(&path, &other).unwrap_err();
        assert!(why.contains("the sources of this tprimat"));
        assert!(check_native(&folder.path().join("none"), &own).is_err());
    }
}
