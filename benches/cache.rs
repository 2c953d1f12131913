//! What opening a cache and looking things up costs, by the number of entries: `cargo bench --bench
//! cache`.

use std::{
    hint::black_box,
    path::Path,
    time::{Duration, Instant},
};

use tprimat::{
    cache::{Attempt, Cache, Entry, Output, TaskKind},
    digest::Digest,
    files::Durability,
    job::RunOutcome,
};

const ROUNDS: u32 = 21;

fn entry(n: u32) -> Entry {
    let preimage = format!(
        "{{\"tprimat\":1,\"task\":\"parse\",\"n\":{n},\"inputs\":\"{}\"}}",
        "0123456789abcdef".repeat(24)
    );
    let output = |name: &str| Output {
        name: name.into(),
        digest: Digest::of(format!("{name}{n}")),
        size: 1234,
    };
    let outputs = vec![output("trace.json"), output("result.json")];
    Entry {
        key: Digest::of(&preimage),
        kind: TaskKind::Parse,
        task: format!("parse nvd/native/llama/single#{n}"),
        preimage,
        outputs,
    }
}

fn attempt(n: u32) -> Attempt {
    let Entry {
        key,
        task,
        preimage,
        outputs,
        ..
    } = entry(n);
    Attempt {
        id: format!("20261121T023705.{n:06}Z-1a2b3c4d"),
        key,
        task,
        preimage,
        generation: 0,
        outcome: RunOutcome::Ok,
        outputs,
        started_at: f64::from(n),
        ended_at: f64::from(n) + 60.0,
        host: "bench".into(),
        suspect: None,
        repeats_planned: None,
        set_aside: None,
        undeclared: Default::default(),
        recorded: 0,
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed(), result)
}

fn median(mut work: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS).map(|_| work()).collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn open(root: &Path) -> Duration {
    // Dropped outside the measured time.
    timed(|| Cache::open(root).expect("a cache")).0
}

/// Nanoseconds each.
fn per(count: usize, time: Duration) -> f64 {
    time.as_secs_f64() * 1e9 / count as f64
}

fn lookups(cache: &Cache, keys: &[Digest]) -> Duration {
    let look = |key| {
        cache.entry(key).map_or(0, |entry| {
            entry
                .outputs()
                .map(|o| o.size + u64::from(o.digest.0[0]))
                .sum()
        })
    };
    timed(|| black_box(keys.iter().map(look).sum::<u64>())).0
}

fn main() {
    println!(
        "| entries | segment | snapshot | open, with | open, without | first lookup | lookup | miss | lookup, without | attempt | record | write snapshot |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for count in [1_000u32, 10_000, 100_000] {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let entries: Vec<Entry> = (0..count).map(entry).collect();
        // Looked up in another order than recorded in.
        let mut keys: Vec<Digest> = entries.iter().map(|entry| entry.key).collect();
        keys.sort_unstable_by_key(|key| Digest::of(key.0));
        let misses: Vec<Digest> = keys.iter().map(|key| Digest::of(key.0)).collect();
        let n = keys.len();

        let cache = Cache::open(root).expect("a cache");
        let record = timed(|| {
            entries
                .iter()
                .for_each(|entry| cache.record_entry(entry).expect("recorded"))
        })
        .0;
        let attempts: Vec<Attempt> = (0..100).map(attempt).collect();
        attempts
            .iter()
            .for_each(|attempt| cache.record_attempt(attempt).expect("recorded"));
        let without = lookups(&cache, &keys);
        let write_snapshot = timed(|| cache.write_snapshot().expect("written")).0;
        drop(cache);

        let snapshot = root.join("snapshot");
        let with = median(|| open(root));
        let first = median(|| {
            let cache = Cache::open(root).expect("a cache");
            timed(|| cache.entry(&keys[0]).is_some()).0
        });
        let cache = Cache::open(root).expect("a cache");
        assert!(
            keys.iter().all(|key| cache.entry(key).is_some())
                && !misses.iter().any(|key| cache.entry(key).is_some())
        );
        let lookup = median(|| lookups(&cache, &keys));
        let miss = median(|| lookups(&cache, &misses));
        let attempt = median(|| {
            timed(|| {
                attempts
                    .iter()
                    .for_each(|a| assert_eq!(cache.attempts(&a.key).len(), 1))
            })
            .0
        });
        drop(cache);

        let size = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len()) as f64 / 1e6;
        let sizes = std::fs::read_dir(root.join("segments"))
            .expect("segments")
            .flatten()
            .map(|e| size(&e.path()))
            .sum::<f64>();
        let snapshot_size = size(&snapshot);
        let open_without = median(|| {
            let _ = std::fs::remove_file(&snapshot);
            open(root)
        });
        println!(
            "| {count} | {sizes:.1} MB | {snapshot_size:.1} MB | {with:.0?} | {open_without:.1?} | {first:.0?} | {:.0} ns | {:.0} ns | {:.0} ns | {:.0} ns | {:.0} ns | {write_snapshot:.1?} |",
            per(n, lookup),
            per(n, miss),
            per(n, without),
            per(attempts.len(), attempt),
            per(n, record),
        );
    }

    let folder = tempfile::tempdir().expect("a folder");
    let cache = Cache::open(folder.path()).expect("a cache");
    let objects = 10_000u32;
    let put = timed(|| {
        for n in 0..objects {
            cache
                .put(format!("object {n}").as_bytes(), Durability::Plain)
                .expect("stored");
        }
    });
    let digests: Vec<Digest> = (0..objects)
        .map(|n| Digest::of(format!("object {n}")))
        .collect();
    let n = digests.len();
    let has = timed(|| assert!(digests.iter().all(|digest| cache.has(digest)))).0;
    let get = timed(|| {
        digests
            .iter()
            .for_each(|digest| drop(cache.get(digest).expect("read")))
    })
    .0;
    std::thread::sleep(Duration::from_millis(20));
    let fingerprint = median(|| timed(|| black_box(cache.fingerprint())).0);
    println!();
    println!(
        "{n} small objects: put {:.0} ns, has {:.0} ns, get {:.0} ns each; fingerprint {fingerprint:.0?}",
        per(n, put.0),
        per(n, has),
        per(n, get)
    );
}
