//! Fingerprints and snapshots of a whole cache.

use std::fs;

use tprimat_base::files::{self, Durability};

use super::*;

/// A cache as two processes have it open.
fn opened_twice() -> (tempfile::TempDir, Cache, Cache) {
    let folder = tempfile::tempdir().unwrap();
    let open = || Cache::open(folder.path()).unwrap();
    let (cache, other) = (open(), open());
    (folder, cache, other)
}

#[test]
fn the_fingerprint_changes_with_the_state_and_only_then() {
    let (folder, cache, other) = opened_twice();
    let now = || Cache::open(folder.path()).unwrap().fingerprint();
    let mut before = now();
    let mut step = |what: &str, changes: bool, act: &dyn Fn()| {
        act();
        let after = now();
        assert_eq!(after != before, changes, "{what}");
        before = after;
    };
    let object = Digest::of(b"object");
    step("nothing", false, &|| {});
    step("an object", true, &|| {
        assert!(cache.put(b"object", Durability::Plain).is_ok())
    });
    step("the same object", false, &|| {
        assert!(cache.put(b"object", Durability::Synced).is_ok())
    });
    step("an entry", true, &|| {
        cache
            .record_entry(&entry(TaskKind::Parse, 1, 1, 1))
            .unwrap()
    });
    step("another's entry", true, &|| {
        other
            .record_entry(&entry(TaskKind::Parse, 2, 1, 1))
            .unwrap()
    });
    step("an attempt", true, &|| {
        record_with_outputs(&cache, &attempt(1, 0, 1, 1)).unwrap()
    });
    step("a memo", false, &|| {
        cache.store_memo(&object, b"memo").unwrap()
    });
    step("a snapshot", false, &|| cache.write_snapshot().unwrap());
    step("a lock", false, &|| drop(cache.lock_key(&object).unwrap()));
    step("reading", false, &|| {
        assert!(
            cache.get(&object).unwrap().is_some()
                && cache.last_of(TaskKind::Parse, "task 1").is_some()
        );
        cache.ensure_writable().unwrap();
        drop(Cache::open(folder.path()).unwrap());
    });
    step("an object deleted", true, &|| {
        fs::remove_file(cache.object_path(&object)).unwrap()
    });
    step("an object again", true, &|| {
        assert!(other.put(b"object", Durability::Plain).is_ok())
    });
    step("a segment deleted", true, &|| {
        let segment = fs::read_dir(folder.path().join("segments"))
            .unwrap()
            .next()
            .unwrap()
            .unwrap();
        fs::remove_file(segment.path()).unwrap();
    });
}

#[test]
fn a_fingerprint_is_of_what_a_process_knows() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Cache::open(folder.path()).unwrap();
    let (cache, other) = (open(), open());
    let parse = |n| entry(TaskKind::Parse, n, n, n);
    cache.record_entry(&parse(1)).unwrap();
    assert_eq!(cache.fingerprint(), open().fingerprint());
    // What somebody recorded since the last look is not in a verdict that was made before.
    other.record_entry(&parse(2)).unwrap();
    assert_ne!(cache.fingerprint(), open().fingerprint());
    assert!(!cache.has_heard_of_others());
    // Later it knows as much, and also that its verdict may be older.
    cache.refresh().unwrap();
    assert_eq!(cache.fingerprint(), open().fingerprint());
    assert!(cache.has_heard_of_others() && !open().has_heard_of_others());
}

#[test]
fn nothing_is_recorded_in_a_file_that_lost_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path()).unwrap();
    let parse = |n| entry(TaskKind::Parse, n, n, n);
    cache.record_entry(&parse(1)).unwrap();
    // A backup that is put back, say: the same bytes in another file.
    for segment in fs::read_dir(folder.path().join("segments")).unwrap() {
        let segment = segment.unwrap().path();
        let bytes = fs::read(&segment).unwrap();
        fs::remove_file(&segment).unwrap();
        files::write_atomically(&segment, &bytes, Durability::Plain).unwrap();
    }
    cache.record_entry(&parse(2)).unwrap();
    let later = Cache::open(folder.path()).unwrap();
    assert!(later.entry(&digest(1)).is_some() && later.entry(&digest(2)).is_some());
    assert_eq!(cache.fingerprint(), later.fingerprint());
}

#[test]
fn a_large_cache_gets_a_snapshot_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let entries: Vec<Entry> = (0..3000).map(|n| entry(TaskKind::Parse, n, n, n)).collect();
    let cache = Cache::open(folder.path()).unwrap();
    cache.record_entries(&entries).unwrap();
    drop(cache);
    assert!(folder.path().join("snapshot").exists());
    let cache = Cache::open(folder.path()).unwrap();
    assert_eq!(cache.segments().past_snapshot, 0, "nothing was read");
    for entry in &entries {
        assert_eq!(outputs(&cache.entry(&entry.key).unwrap()), entry.outputs);
        assert_eq!(cache.last_of(entry.kind, &entry.task).as_ref(), Some(entry));
    }
}

#[test]
fn a_snapshot_of_other_segments_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path()).unwrap();
    cache
        .record_entry(&entry(TaskKind::Parse, 1, 1, 1))
        .unwrap();
    cache
        .record_entry(&entry(TaskKind::Parse, 2, 1, 1))
        .unwrap();
    cache.write_snapshot().unwrap();
    drop(cache);
    // The second record goes, and a longer one takes its place.
    let segment = fs::read_dir(folder.path().join("segments"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let length = fs::metadata(&segment).unwrap().len();
    fs::OpenOptions::new()
        .write(true)
        .open(&segment)
        .unwrap()
        .set_len(length - 1)
        .unwrap();
    let cache = Cache::open(folder.path()).unwrap();
    record_with_outputs(&cache, &attempt(3, 0, 1, 1)).unwrap();
    assert!(fs::metadata(&segment).unwrap().len() > length);
    drop(cache);
    let cache = Cache::open(folder.path()).unwrap();
    assert!(cache.entry(&digest(1)).is_some() && cache.entry(&digest(2)).is_none());
    assert_eq!(cache.attempts(&digest(3)).len(), 1);
}

#[test]
fn threads_share_one_cache() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                for n in (thread..400).step_by(4) {
                    cache
                        .record_entry(&entry(TaskKind::Parse, n, n, n))
                        .unwrap();
                    assert!(cache.entry(&digest(n)).is_some());
                }
            });
        }
    });
    let again = Cache::open(folder.path()).unwrap();
    assert!((0..400).all(|n| again.entry(&digest(n)).is_some()));
    assert_eq!(
        fs::read_dir(folder.path().join("segments"))
            .unwrap()
            .count(),
        1
    );
}
