use super::*;
use crate::cache::{Attempt, Entry};
use tprimat_base::files::Durability;

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

    let digests = |limits| -> Vec<Digest> {
        let garbage = cache.garbage(limits).unwrap();
        garbage.iter().map(|garbage| garbage.digest).collect()
    };
    assert_eq!(digests(None), [nobody.digest]);
    let day = Some(files::unix_now() - YOUNG.as_secs_f64());
    assert_eq!(digests(day), [nobody.digest], "the picture is of today");
    let all = Some(files::unix_now() + 1.0);
    let expected = BTreeSet::from([nobody.digest, picture.digest]);
    assert_eq!(digests(all).into_iter().collect::<BTreeSet<_>>(), expected);
    cache.remove(&cache.garbage(all).unwrap()).unwrap();
    let has = [&log, &result, &picture, &nobody, &young].map(|o| cache.has(&o.digest));
    assert_eq!(has, [true, true, false, false, true]);
}

#[test]
fn what_is_damaged_is_named_at_each_look_and_comes_back_by_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("cache");
    let cache = Cache::open(&root).unwrap();
    let [good, bad] = ["good", "bad"].map(|text| put(&cache, text));
    let mut run = attempt(&good);
    run.outputs.push(bad.clone());
    cache.record_attempt(&run).unwrap();
    let text = cache.record_preimage("a job").unwrap();
    let backup = folder.path().join("backup");
    let copy = |from: &PathBuf, to: &PathBuf| {
        let mut cp = std::process::Command::new("cp");
        assert!(
            cp.args(["-rfT", "--"])
                .args([from, to])
                .status()
                .unwrap()
                .success()
        );
    };
    copy(&root, &backup);
    let path = cache.object_path(&bad.digest);
    let edit = |path: &PathBuf| {
        fs::remove_file(path).unwrap();
        files::write_atomically(path, b"edited", Durability::Plain).unwrap();
    };
    edit(&path);
    edit(&root.join("texts").join(text.to_string()));
    // Whoever looks finds the same, however often.
    for _ in 0..2 {
        let found = Cache::open(&root).unwrap().verify(&|_, _| ()).unwrap();
        assert_eq!((found.objects, found.records), (2, 1));
        assert_eq!(found.damaged, [bad.digest]);
        assert_eq!(found.damaged_files[0].name, "bad");
        assert_eq!(found.damaged_records.len(), 1, "the text: {found:?}");
        assert!(found.lost.is_empty() && !found.is_sound());
    }
    fs::remove_file(&path).unwrap();
    let found = Cache::open(&root).unwrap().verify(&|_, _| ()).unwrap();
    assert_eq!(found.lost, [(run.task.clone(), "bad".to_owned())]);
    // A record that is damaged is no garbage of its files.
    let records = root.join("records").join(run.key.to_string());
    edit(&records.join(format!("{}.json", run.id)));
    let cache = Cache::open(&root).unwrap();
    assert!(cache.attempts(&run.key).is_empty());
    assert!(cache.garbage(None).is_err());
    copy(&backup, &root);
    let cache = Cache::open(&root).unwrap();
    assert!(cache.verify(&|_, _| ()).unwrap().is_sound());
    assert_eq!(cache.attempts(&run.key).len(), 1);
}

fn attempt(output: &Output) -> Attempt {
    Attempt {
        key: Digest::of("k"),
        task: "train".into(),
        preimage: "k".into(),
        outputs: vec![output.clone()],
        started_at: 5.0,
        ended_at: 6.0,
        ..crate::cache::tests::attempt(1, 0, 1, 1)
    }
}
