//! Fingerprints and snapshots of a whole cache.

use std::fs;

use tprimat_base::files::Durability;

use super::*;

#[test]
fn the_fingerprint_changes_with_the_state_and_only_then() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, other) = (
        Cache::open(folder.path()).unwrap(),
        Cache::open(folder.path()).unwrap(),
    );
    let mut before = cache.fingerprint();
    let mut step = |what: &str, changes: bool, act: &dyn Fn()| {
        act();
        let after = cache.fingerprint();
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
        cache.record_attempt(&attempt(1, 0, 1, 1)).unwrap()
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
    cache.record_attempt(&attempt(3, 0, 1, 1)).unwrap();
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
