//! Disks that are full, and folders that cannot be written to.

use std::{fs, io::Read, path::Path};

use nix::sys::{
    resource::{Resource, setrlimit},
    signal::{SigHandler, Signal, signal},
};

use super::{
    child::{process, said, say},
    *,
};
use crate::{
    error::Error,
    files::{self, Durability},
};

/// Records entries until no file may grow any more; runs in a process of its own.
pub fn fill(root: &Path) {
    // SAFETY: ignoring a signal runs no handler.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, 20_000, 20_000).unwrap();
    let cache = Cache::open(root).unwrap();
    let mut noise = vec![0; 40_000];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    say(&format!("put: {}", cache.put(&noise, Durability::Plain).unwrap_err()));
    assert_eq!(fs::read_dir(root.join("tmp")).unwrap().count(), 0);
    for n in 0.. {
        match cache.record_entry(&entry(TaskKind::Parse, n, n, n)) {
            Ok(()) => say(&format!("entry {n}")),
            Err(e) => {
                say(&format!("record: {e}"));
                assert!(cache.entry(&digest(n)).is_none(), "what failed is not there");
                assert!(cache.entry(&digest(n - 1)).is_some());
                assert!(cache.record_attempt(&attempt(n, 0, n, n)).is_err());
                return;
            }
        }
    }
}

#[test]
fn a_full_disk_is_one_clear_error_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    let mut child = process("fill", &root, 0).spawn().unwrap();
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(child.wait().unwrap().success(), "{output}");

    let errors: Vec<&str> = said(&output).filter(|line| line.contains(": ")).collect();
    let expected = format!("cannot write to the cache {}: File too large (os error 27)", root.display());
    assert_eq!(errors, [format!("put: {expected}"), format!("record: {expected}")]);

    let recorded = said(&output).filter(|line| line.starts_with("entry")).count() as u32;
    assert!(recorded > 50, "{recorded}");
    let cache = Cache::open(&root).unwrap();
    assert!((0..recorded).all(|n| cache.entry(&digest(n)).is_some()));
    assert!(cache.entry(&digest(recorded)).is_none() && cache.attempts(&digest(recorded)).is_empty());
    cache.record_entry(&entry(TaskKind::Parse, recorded, 0, 0)).unwrap();
    assert!(Cache::open(&root).unwrap().entry(&digest(recorded)).is_some());
}

#[test]
fn a_folder_that_cannot_be_made_reads_as_empty() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    files::write_atomically(&file, b"in the way", Durability::Plain).unwrap();
    let root = file.join("cache");
    let cache = Cache::open(&root).unwrap();
    let key = digest(1);
    assert!(cache.entry(&key).is_none() && !cache.has(&key) && cache.attempts(&key).is_empty());
    assert_eq!((cache.get(&key).unwrap(), cache.load_memo(&key), cache.generation(&key)), (None, None, 0));
    let _ = cache.fingerprint();

    let failures: Vec<Error> = vec![
        cache.ensure_writable().unwrap_err(),
        cache.put(b"x", Durability::Plain).unwrap_err(),
        cache.put_file(&file, Durability::Plain).unwrap_err(),
        cache.record_entry(&entry(TaskKind::Parse, 1, 1, 1)).unwrap_err(),
        cache.record_attempt(&attempt(1, 0, 1, 1)).unwrap_err(),
        cache.record_preimage("x").unwrap_err(),
        cache.open_generation(&key).unwrap_err(),
        cache.store_memo(&key, b"x").unwrap_err(),
        cache.try_lock_key(&key).err().unwrap(),
    ];
    for failure in failures {
        let expected = format!("cannot write to the cache {}: Not a directory (os error 20)", root.display());
        assert_eq!((failure.to_string(), failure.exit_code()), (expected, crate::error::exit::USAGE));
    }
}

#[test]
fn folders_that_go_missing_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("a/cache");
    let cache = Cache::open(&root).unwrap();
    for round in 0..3 {
        cache.ensure_writable().unwrap();
        let object = cache.put(b"object", Durability::Synced).unwrap();
        cache.record_attempt(&attempt(round, 0, 1, 1)).unwrap();
        let again = Cache::open(&root).unwrap();
        assert!(again.has(&object) && again.attempts(&digest(round)).len() == 1);
        assert!(root.join("CACHEDIR.TAG").exists());
        fs::remove_dir_all(&root).unwrap();
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path()).unwrap();
    let error = cache.put_file(&folder.path().join("no.log"), Durability::Plain).unwrap_err();
    assert!(error.to_string().ends_with("no.log: No such file or directory (os error 2)"), "{error}");
}
