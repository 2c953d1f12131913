//! Several processes on one cache, and processes that are killed.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::Child,
};

use super::{
    child::{blob, process, said},
    *,
};

/// Everything said to be recorded is; returns how many attempts there are.
fn check<'a>(root: &Path, said: impl Iterator<Item = &'a str>, upto: u32) -> usize {
    let cache = Cache::open(root).unwrap();
    let said: BTreeSet<&str> = said.collect();
    let mut found = 0;
    for n in 0..upto {
        let attempts = cache.attempts(&digest(n));
        let entry = cache.outputs(&digest(n));
        assert!(
            !said.contains(format!("attempt {n}").as_str()) || attempts.len() == 1,
            "attempt {n} is lost"
        );
        assert!(
            !said.contains(format!("entry {n}").as_str()) || entry.is_some(),
            "entry {n} is lost"
        );
        if let Some(entry) = &entry {
            assert_eq!(*entry, super::entry(TaskKind::Parse, n, n, n).outputs);
            assert_eq!(attempts.len(), 1, "an entry outlived the attempt before it");
        }
        for found in plain(attempts.clone()) {
            assert_eq!(found, attempt(n, 0, n, n));
            assert_eq!(
                cache.get(&Digest::of(blob(n))).unwrap(),
                Some(blob(n)),
                "attempt {n} has no log"
            );
        }
        found += attempts.len();
    }
    found
}

fn rest_of(mut child: Child, output: &mut String) {
    child.stdout.take().unwrap().read_to_string(output).unwrap();
    child.wait().unwrap();
}

#[test]
fn processes_at_once_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..4)
        .map(|i| {
            process("record 100", folder.path(), i * 100)
                .spawn()
                .unwrap()
        })
        .collect();
    let mut output = String::new();
    children
        .into_iter()
        .for_each(|child| rest_of(child, &mut output));
    assert_eq!(said(&output).count(), 800);
    assert_eq!(check(folder.path(), said(&output), 400), 400);
}

#[test]
fn a_killed_process_loses_nothing_that_it_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut output = String::new();
    // Each round waits for some lines and a varying moment more.
    for round in 0..20u32 {
        let first = round * 1000;
        let mut child = process("record forever", folder.path(), first)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut heard = String::new();
        while said(&heard).count() < (round % 5) as usize {
            lines.read_line(&mut heard).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_micros(u64::from(
            round * 7919 % 3001,
        )));
        child.kill().unwrap();
        lines.read_to_string(&mut heard).unwrap();
        child.wait().unwrap();

        let cache = Cache::open(folder.path()).unwrap();
        for n in first..first + 1000 {
            for found in plain(cache.attempts(&digest(n))) {
                assert_eq!(found, attempt(n, 0, n, n));
            }
        }
        assert_eq!(cache.faults(), Faults::default());
        let said_now = said(&heard).count() as u32;
        assert!(
            cache.attempts(&digest(first + said_now / 2 + 2)).is_empty(),
            "more than was begun"
        );
        output.push_str(&heard);
    }
    check(folder.path(), said(&output), 20_000);
}

#[test]
fn a_lock_ends_with_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path()).unwrap();
    let mut child = process("hold a lock", folder.path(), 0).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut heard = String::new();
    while said(&heard).next().is_none() {
        lines.read_line(&mut heard).unwrap();
    }
    assert!(cache.try_lock_key(&digest("key")).unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    cache.lock_key(&digest("key")).unwrap();
}
