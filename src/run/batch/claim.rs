//! What the folder of a job's run says of its jobs: which one was submitted last, and which one has the run.

use std::{collections::BTreeMap, fs, io, path::Path};

use crate::{
    error::{Error, Result},
    files,
    run::{
        end_note::exit_or_end,
        folder::{make, note_host, read_if_there, read_spec_with},
        spec::{RunSpec, hostname},
    },
};

/// The claim of a tprimat that takes a run back before any job has it.
pub(super) const WITHDRAWN: &str = "withdrawn";

/// The id of the job that was submitted last, as soon as it is known.
pub(super) const SUBMITTED: &str = "job";
/// Which job runs it; made once, by that job.
pub(super) const CLAIM: &str = "claim";
/// For the job alone, which removes it as soon as it has read it.
pub(crate) const ENVIRONMENT: &str = "environment";

/// Has a job this run? Its processes may be on another host then.
#[must_use]
pub fn is_of_a_job(dir: &Path) -> bool {
    matches!(noted(&dir.join(CLAIM)), Ok(Some(_)))
}

/// The job that has the run of a folder, whichever submission was heard of; else the one that was submitted
/// last.
pub(super) fn noted_job(dir: &Path) -> Result<Option<String>> {
    match noted(&dir.join(CLAIM))? {
        None => noted(&dir.join(SUBMITTED)),
        claimed => Ok(claimed),
    }
}

/// What such a file names; nothing as long as it is empty or not there.
pub(super) fn noted(path: &Path) -> Result<Option<String>> {
    let text = read_if_there(path)?.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    let is_id = |c: char| c.is_ascii_alphanumeric() || "_+-".contains(c);
    Ok(Some(text).filter(|text| !text.is_empty() && text.chars().all(is_id)))
}

/// Takes the run of a folder; false: somebody else has it already. Whoever makes this file is the
/// only one who may start the run.
pub(crate) fn take(dir: &Path, who: &str) -> Result<bool> {
    let path = dir.join(CLAIM);
    match make(&path, who.as_bytes()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Error::io("cannot make", path)(error)),
    }
}

/// What a job does before its run may start: it takes the run for itself, and reads the environment, which
/// is in no other file. `None`: another job has it.
pub(crate) fn claim(dir: &Path, job: &str, environment: &Path) -> Result<Option<RunSpec>> {
    if !take(dir, job)? {
        // A controller that lost its last state, or a pod, starts a job that has run already. Where that
        // start was cut off, this one must not end well: the system would say so of the run.
        let is_again = noted(&dir.join(CLAIM))?.is_some_and(|claimed| claimed == job);
        if is_again && exit_or_end(dir)?.is_none() {
            return Err(Error::failed(format!(
                "job {job} was started a second time; its first start left no record of the run's end, and no run is made twice"
            )));
        }
        return Ok(None);
    }
    note_host(dir, hostname().as_deref());
    let env = environment_in(environment)?;
    // A Secret is not in the folder, and goes with its job.
    let _ = fs::remove_file(environment);
    read_spec_with(dir, env).map(Some)
}

pub(crate) fn environment_in(path: &Path) -> Result<BTreeMap<String, String>> {
    serde_json::from_slice(&files::read(path)?)
        .map_err(|e| Error::io("cannot read", path)(e.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Durability, write_atomically};

    #[test]
    fn a_run_is_claimed_once_and_its_environment_does_not_stay() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let spec = serde_json::json!({
            "run_id": "r1", "dir": dir, "argv": ["true"], "cwd": "/", "timeout_seconds": null,
            "grace_seconds": 1.0, "devices": [], "exclusive": true, "lock_dir": "/tmp", "meta": null,
        });
        let write = |path: &Path, text: &str| {
            write_atomically(path, text.as_bytes(), Durability::Plain).unwrap();
        };
        write(&dir.join("spec.json"), &spec.to_string());
        write(&dir.join(ENVIRONMENT), r#"{"HF_TOKEN":"secret"}"#);
        let claimed = claim(dir, "1", &dir.join(ENVIRONMENT)).unwrap();
        assert_eq!(claimed.unwrap().env["HF_TOKEN"], "secret");
        assert!(!dir.join(ENVIRONMENT).exists());
        assert_eq!(claim(dir, "2", &dir.join(ENVIRONMENT)).unwrap(), None);
    }

    #[test]
    fn a_job_is_the_one_that_claimed_the_folder_whatever_was_heard_of_its_submission() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let job = || noted_job(dir).unwrap();
        assert_eq!(job(), None);
        write_atomically(&dir.join(SUBMITTED), b"12", Durability::Plain).unwrap();
        assert_eq!(job().as_deref(), Some("12"));
        assert!(take(dir, "11").unwrap() && !take(dir, "12").unwrap());
        assert_eq!(job().as_deref(), Some("11"));
    }
}
