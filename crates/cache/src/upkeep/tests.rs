use super::*;
use crate::{Attempt, tests::repaired};

fn put(cache: &Cache, text: &str) -> Output {
    Output {
        name: text.to_owned(),
        digest: cache.put(text.as_bytes(), Durability::Plain).unwrap(),
        size: text.len() as u64,
    }
}

/// Makes an object look as if it was written long ago.
fn age(cache: &Cache, digest: &Digest) {
    let path = cache.object_path(digest);
    let file = fs::File::open(path).unwrap();
    let times = fs::FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
    file.set_times(times).unwrap();
}

#[test]
fn nothing_that_was_measured_is_garbage_whatever_the_limits() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("cache")).unwrap();
    let [log, result, picture, nobody, young] =
        ["log", "result", "picture", "nobody's", "young"].map(|text| put(&cache, text));
    let entry = |kind, output: &Output| Entry {
        key: Digest::of(&output.name),
        kind,
        task: "t".into(),
        preimage: output.name.clone(),
        outputs: vec![output.clone()],
    };
    cache.record_attempt(&attempt(&log)).unwrap();
    // A picture may show the very bytes of a log.
    cache.record_entry(&entry(TaskKind::Report, &log)).unwrap();
    cache
        .record_entry(&entry(TaskKind::Parse, &result))
        .unwrap();
    cache
        .record_entry(&entry(TaskKind::Plot, &picture))
        .unwrap();
    [&log, &result, &picture, &nobody]
        .iter()
        .for_each(|output| age(&cache, &output.digest));
    let usage = cache.usage().unwrap();
    assert_eq!((usage.runs, usage.objects), (1, 5));
    assert_eq!((usage.drawn, usage.unnamed), (1, 2));
    assert_eq!((usage.first_run, usage.last_run), (Some(5.0), Some(5.0)));

    let digests = |limits| -> Vec<Digest> {
        let garbage = cache.garbage(limits).unwrap();
        garbage.iter().map(|garbage| garbage.digest).collect()
    };
    assert_eq!(digests(Limits::default()), [nobody.digest]);
    let day = Limits {
        older_than: Some(YOUNG),
        ..Limits::default()
    };
    assert_eq!(digests(day), [nobody.digest], "the picture is of today");
    let all = Limits {
        older_than: Some(Duration::ZERO),
        at_most_bytes: Some(0),
    };
    assert_eq!(digests(all), [nobody.digest, picture.digest]);
    cache.remove(&cache.garbage(all).unwrap()).unwrap();
    let has = [&log, &result, &picture, &nobody, &young].map(|o| cache.has(&o.digest));
    assert_eq!(has, [true, true, false, false, true]);
}

#[test]
fn damaged_objects_are_found_at_each_look_until_a_repair_removes_them() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    let cache = Cache::open(&root).unwrap();
    let [good, bad] = ["good", "bad"].map(|text| put(&cache, text));
    let path = cache.object_path(&bad.digest);
    fs::remove_file(&path).unwrap();
    files::write_atomically(&path, b"edited", Durability::Plain).unwrap();
    let mut attempt = attempt(&good);
    attempt.outputs.push(bad.clone());
    cache.record_attempt(&attempt).unwrap();
    let verify = |cache: &Cache| {
        let Verified {
            objects,
            damaged,
            lost,
            known_lost,
            ..
        } = cache.verify(&|_, _| ()).unwrap();
        let lost: Vec<String> = lost.into_iter().map(|(_, name)| name).collect();
        let known_lost: Vec<String> = known_lost.into_iter().map(|(_, name)| name).collect();
        (objects, damaged, lost, known_lost)
    };
    let none = Vec::<String>::new;
    // Whoever looks finds the same, however often.
    for _ in 0..2 {
        let found = verify(&Cache::open(&root).unwrap());
        assert_eq!(found, (2, vec![bad.digest], none(), none()));
    }
    let cache = Cache::open(&root).unwrap();
    verify(&cache);
    assert_eq!(cache.repair().unwrap().removed, [bad.digest]);
    assert!(cache.has(&good.digest) && !path.exists());
    let found = verify(&Cache::open(&root).unwrap());
    assert_eq!(found, (1, vec![], none(), vec!["bad".to_owned()]));
}

/// A cache with ten records, a snapshot of them, and the segment that has them.
fn ten_records() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    let cache = Cache::open(&root).unwrap();
    for number in 0..10 {
        cache.record_preimage(&format!("text {number}")).unwrap();
    }
    let mut segments = fs::read_dir(root.join("segments")).unwrap();
    let segment = segments.next().unwrap().unwrap().path();
    (folder, root, segment)
}

fn damaged_records(root: &std::path::Path) -> Vec<(u64, u64)> {
    let verified = Cache::open(root).unwrap().verify(&|_, _| ()).unwrap();
    let damaged = verified.damaged_records.iter();
    damaged.map(|found| (found.offset, found.bytes)).collect()
}

#[test]
fn bytes_that_are_no_record_are_found_and_told_once() {
    let (_folder, root, segment) = ten_records();
    let whole = fs::read(&segment).unwrap();
    let frame = whole.len() as u64 / 10;
    let mut bytes = whole.clone();
    bytes[whole.len() / 2..][..2].fill(0);
    files::write_atomically(&segment, &bytes, Durability::Plain).unwrap();
    let expected = [(5 * frame, frame)];
    // Neither whoever reads nothing of it nor `verify` itself makes it unknown.
    for _ in 0..2 {
        drop(Cache::open(&root).unwrap());
        assert_eq!(damaged_records(&root), expected);
    }
    let told = || Cache::open(&root).unwrap().unreadable_bytes();
    assert_eq!([told(), told()], [frame, 0]);
    assert_eq!(damaged_records(&root), expected);
    let cache = Cache::open(&root).unwrap();
    let texts = (0..10).map(|number| Digest::of(format!("text {number}")));
    let known = texts.filter(|text| cache.preimage(text).is_some());
    assert_eq!(known.count(), 9);
}

#[test]
fn a_repair_cuts_out_what_cannot_be_read_and_nothing_else() {
    let texts = || (0..10).map(|number| Digest::of(format!("text {number}")));
    let known = |root: &std::path::Path| {
        let cache = Cache::open(root).unwrap();
        texts()
            .filter(|text| cache.preimage(text).is_some())
            .count()
    };
    let (_folder, _, segment) = ten_records();
    let frame = fs::read(&segment).unwrap().len() / 10;
    let all = 10 * frame;
    // Where damage begins, how many bytes it has, and how long the file is afterwards.
    let cases = [
        (5 * frame, 2, all),
        (2 * frame, 200, all),
        (0, 1, all),
        (9 * frame, 2, all),
        (all - 2, 2, all),
        (8 * frame, 2 * frame, all),
        (0, 0, 7 * frame),
        (0, 0, 9 * frame + 20),
        (9 * frame, 2, all - 3),
    ];
    for with_snapshot in [false, true] {
        for (from, bytes, length) in cases {
            let (_folder, root, segment) = ten_records();
            if with_snapshot {
                Cache::open(&root).unwrap().write_snapshot().unwrap();
            }
            let mut damaged = fs::read(&segment).unwrap();
            damaged[from..][..bytes].fill(0);
            damaged.truncate(length);
            files::write_atomically(&segment, &damaged, Durability::Plain).unwrap();
            let is_whole = |record: &usize| {
                let (start, end) = (record * frame, (record + 1) * frame);
                end <= length && (bytes == 0 || end <= from || from + bytes <= start)
            };
            let whole = (0..10).filter(is_whole).count();
            assert_eq!(known(&root), whole);
            let found = damaged_records(&root);
            let repair = repaired(&root);
            assert_eq!((repair.cut.len(), repair.left), (found.len(), Vec::new()));
            assert_eq!(damaged_records(&root), []);
            // Nobody is warned of what was cut out, whatever is asked for.
            let cache = Cache::open(&root).unwrap();
            let known_now = texts().filter(|text| cache.preimage(text).is_some());
            assert_eq!((known_now.count(), cache.unreadable_bytes()), (whole, 0));
            drop(cache);
            // Records go on behind it.
            let cache = Cache::open(&root).unwrap();
            texts().enumerate().for_each(|(number, _)| {
                cache.record_preimage(&format!("text {number}")).unwrap();
            });
            drop(cache);
            assert_eq!((known(&root), damaged_records(&root)), (10, Vec::new()));
        }
    }
}

#[test]
fn records_that_are_gone_are_known_until_a_repair_gives_them_up() {
    // How many of the ten records stay whole, and what is done to the bytes after them.
    type Damage = fn(&mut Vec<u8>, usize);
    let cases: [(usize, Damage); 4] = [
        (0, |bytes, _| bytes.clear()),
        (7, |bytes, whole| bytes.truncate(whole)),
        (9, |bytes, whole| bytes[whole] ^= 1),
        (4, |bytes, whole| bytes[whole..].fill(0)),
    ];
    for (whole, damage) in cases {
        let (_folder, root, segment) = ten_records();
        Cache::open(&root).unwrap().write_snapshot().unwrap();
        let mut bytes = fs::read(&segment).unwrap();
        let length = bytes.len();
        let whole = whole * length / 10;
        damage(&mut bytes, whole);
        if bytes.is_empty() {
            fs::remove_file(&segment).unwrap();
        } else {
            files::write_atomically(&segment, &bytes, Durability::Plain).unwrap();
        }
        let lost = (length - whole) as u64;
        let cache = Cache::open(&root).unwrap();
        assert_eq!(cache.unreadable_bytes(), lost);
        // A build goes on, and the next snapshot no longer knows of them.
        for number in 0..3 {
            cache.record_preimage(&format!("later {number}")).unwrap();
        }
        drop(cache);
        for _ in 0..2 {
            let cache = Cache::open(&root).unwrap();
            assert_eq!(cache.unreadable_bytes(), 0, "told once");
            assert!(cache.has_damaged_records().unwrap());
            assert_eq!(damaged_records(&root), [(whole as u64, lost)]);
        }
        let repair = repaired(&root);
        assert_eq!((repair.cut.len(), repair.left.len()), (1, 0));
        let cache = Cache::open(&root).unwrap();
        assert!(!cache.has_damaged_records().unwrap());
        assert_eq!(damaged_records(&root), []);
    }
}

#[test]
fn a_segment_that_is_put_back_is_not_gone_any_more() {
    for length in [0, 3] {
        let (_folder, root, segment) = ten_records();
        Cache::open(&root).unwrap().write_snapshot().unwrap();
        let whole = fs::read(&segment).unwrap();
        let put = |bytes: &[u8]| {
            files::write_atomically(&segment, bytes, Durability::Plain).unwrap();
        };
        let frame = whole.len() / 10;
        let cut = |length: usize| match length {
            0 => fs::remove_file(&segment).unwrap(),
            _ => put(&whole[..length * frame]),
        };
        cut(length);
        let told = [((length * frame) as u64, ((10 - length) * frame) as u64)];
        // Another segment has the note: a process that has the cut one open is still writing there.
        let held = fs::File::open(&segment);
        held.iter().for_each(|file| file.lock().unwrap());
        let cache = Cache::open(&root).unwrap();
        cache.record_preimage("later").unwrap();
        cache.write_snapshot().unwrap();
        drop((cache, held));
        assert_eq!(damaged_records(&root), told);
        // A backup that is damaged itself, or an older one, brings nothing back.
        let mut damaged = whole.clone();
        damaged[9 * frame + 30] ^= 1;
        for not_it in [&damaged[..], &whole[..9 * frame]] {
            put(not_it);
            assert!(!damaged_records(&root).is_empty());
        }
        put(&whole);
        assert_eq!(damaged_records(&root), []);
        assert!(!Cache::open(&root).unwrap().has_damaged_records().unwrap());
        // Gone again, it is told again.
        cut(length);
        assert_eq!(damaged_records(&root), told);
    }
}

#[test]
fn a_note_that_others_wrote_is_no_place_beyond_all_files() {
    let note = |name: &str| {
        let (name, digest) = (name.to_owned(), Digest::of(name));
        let output = Output {
            name,
            digest,
            size: 2,
        };
        GoneRecords::of_note(&output).map(|gone| (gone.records.offset, gone.last.end))
    };
    assert_eq!(note("segments/a.seg@5"), Some((5, 7)));
    assert_eq!(note("segments/a.seg@5@6@1"), Some((5, 7)));
    assert_eq!(note(&format!("segments/a.seg@{}", u64::MAX)), None);
    assert_eq!(note("segments/a.seg"), None);
    for elsewhere in [
        "/tmp/a.seg",
        "segments/../a.seg",
        "segments//a.seg",
        "segments/a",
    ] {
        assert_eq!(note(&format!("{elsewhere}@5")), None, "{elsewhere}");
    }
}

#[test]
fn a_repair_keeps_what_only_the_snapshot_still_knows() {
    let (_folder, root, segment) = ten_records();
    let cache = Cache::open(&root).unwrap();
    let entry = Entry {
        key: Digest::of("a list"),
        kind: TaskKind::Parse,
        task: "t".into(),
        preimage: "a list".into(),
        outputs: vec![put(&cache, "listed")],
    };
    cache.record_entry(&entry).unwrap();
    cache.write_snapshot().unwrap();
    drop(cache);
    let mut damaged = fs::read(&segment).unwrap();
    *damaged.last_mut().unwrap() += 1;
    files::write_atomically(&segment, &damaged, Durability::Plain).unwrap();
    let outputs = || Cache::open(&root).unwrap().outputs(&entry.key);
    assert_eq!(outputs(), Some(entry.outputs.clone()));
    let repair = repaired(&root);
    assert_eq!((repair.cut.len(), repair.left.len()), (1, 0));
    assert_eq!(outputs(), Some(entry.outputs.clone()));
}

#[test]
fn a_text_that_was_damaged_and_recorded_again_stays_known() {
    let (_folder, root, segment) = ten_records();
    Cache::open(&root).unwrap().write_snapshot().unwrap();
    let mut damaged = fs::read(&segment).unwrap();
    damaged[..2].fill(0);
    files::write_atomically(&segment, &damaged, Durability::Plain).unwrap();
    let cache = Cache::open(&root).unwrap();
    let digest = cache.record_preimage("text 0").unwrap();
    for _ in 0..2 {
        let cache = Cache::open(&root).unwrap();
        assert_eq!(cache.preimage(&digest).as_deref(), Some("text 0"));
        cache.write_snapshot().unwrap();
    }
}

/// An attempt that left `output`.
fn attempt(output: &Output) -> Attempt {
    Attempt {
        key: Digest::of("k"),
        task: "train".into(),
        preimage: "k".into(),
        outputs: vec![output.clone()],
        started_at: 5.0,
        ended_at: 6.0,
        ..crate::tests::attempt(1, 0, 1, 1)
    }
}

#[test]
fn a_file_that_came_back_and_is_lost_again_is_told_as_new() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("cache")).unwrap();
    let log = put(&cache, "log");
    cache.record_attempt(&attempt(&log)).unwrap();
    let lose = || fs::remove_file(cache.object_path(&log.digest)).unwrap();
    let told = || {
        let verified = cache.verify(&|_, _| ()).unwrap();
        (verified.lost.len(), verified.known_lost.len())
    };
    lose();
    assert_eq!(told(), (1, 0));
    cache.repair().unwrap();
    assert_eq!(told(), (0, 1));
    put(&cache, "log");
    cache.repair().unwrap();
    lose();
    assert_eq!(told(), (1, 0));
}

#[test]
fn what_a_repair_left_is_not_taken_over_by_another_cache() {
    let (_folder, root, segment) = ten_records();
    let cache = Cache::open(&root).unwrap();
    let log = put(&cache, "log");
    cache.record_attempt(&attempt(&log)).unwrap();
    drop(cache);
    let mut damaged = fs::read(&segment).unwrap();
    damaged[..2].fill(0);
    files::write_atomically(&segment, &damaged, Durability::Plain).unwrap();
    let theirs = Cache::open(&root).unwrap();
    fs::remove_file(theirs.object_path(&log.digest)).unwrap();
    theirs.repair().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let ours = Cache::open(&folder.path().join("cache")).unwrap();
    let adopted = ours.adopt(&theirs, &Digest::of("no list")).unwrap();
    assert_eq!((adopted.attempts, adopted.records), (1, 10));
    // It is new here, and whoever looks is told.
    let verified = ours.verify(&|_, _| ()).unwrap();
    assert_eq!((verified.lost.len(), verified.known_lost.len()), (1, 0));
}

#[test]
fn a_segment_that_another_process_writes_is_left_alone() {
    let (_folder, root, segment) = ten_records();
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..][..2].fill(0);
    files::write_atomically(&segment, &bytes, Durability::Plain).unwrap();
    let other = Cache::open(&root).unwrap();
    other.record_preimage("another text").unwrap();
    let repair = || Cache::open(&root).unwrap().repair().unwrap();
    let before = fs::read(&segment).unwrap();
    assert_eq!((repair().cut.len(), repair().left.len()), (0, 1));
    assert_eq!(fs::read(&segment).unwrap(), before);
    drop(other);
    let repair = repaired(&root);
    assert_eq!((repair.cut.len(), repair.left.len()), (1, 0));
}

#[test]
fn a_torn_end_is_no_damage_unless_a_snapshot_knew_it() {
    let (_folder, root, segment) = ten_records();
    let whole = fs::read(&segment).unwrap();
    let frame = whole.len() as u64 / 10;
    let cut = |to: u64| {
        let file = fs::File::options().write(true).open(&segment).unwrap();
        file.set_len(to).unwrap();
    };
    cut(10 * frame - 3);
    assert_eq!(damaged_records(&root), []);
    assert_eq!(Cache::open(&root).unwrap().unreadable_bytes(), 0);

    Cache::open(&root).unwrap().write_snapshot().unwrap();
    assert_eq!(damaged_records(&root), [], "the next writer cuts it off");
    cut(7 * frame + 3);
    for _ in 0..2 {
        assert_eq!(Cache::open(&root).unwrap().unreadable_bytes(), 2 * frame);
        assert_eq!(damaged_records(&root), [(7 * frame, 2 * frame)]);
    }
    let cache = Cache::open(&root).unwrap();
    assert_eq!(cache.unreadable_bytes(), 2 * frame);
    cache.record_preimage("measured again").unwrap();
    drop(cache);
    assert_eq!(Cache::open(&root).unwrap().unreadable_bytes(), 0);
}
