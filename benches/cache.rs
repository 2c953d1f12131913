//! What recording and looking things up costs, by the number of entries: `cargo bench --bench cache`.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use tprimat::{
    cache::{Attempt, Cache, Entry, Output, TaskKind},
    digest::Digest,
    files::Durability,
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
    let of = entry(n);
    Attempt {
        started_at: f64::from(n),
        ended_at: f64::from(n) + 60.0,
        host: "bench".into(),
        ..Attempt::ok(
            format!("20261121T023705.{n:06}Z-1a2b3c4d"),
            of.task,
            of.preimage,
            of.outputs,
        )
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

/// Microseconds each.
fn per(count: usize, time: Duration) -> f64 {
    time.as_secs_f64() * 1e6 / count as f64
}

fn main() {
    println!("| entries | record | look up | miss | attempts of a key | index of all |");
    println!("|---|---|---|---|---|---|");
    for count in [1_000u32, 10_000] {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::open(folder.path()).expect("a cache");
        let entries: Vec<Entry> = (0..count).map(entry).collect();
        // Looked up in another order than recorded in.
        let mut keys: Vec<Digest> = entries.iter().map(|entry| entry.key).collect();
        keys.sort_unstable_by_key(|key| Digest::of(key.0));
        let misses: Vec<Digest> = keys.iter().map(|key| Digest::of(key.0)).collect();
        let record = timed(|| {
            entries
                .iter()
                .for_each(|entry| cache.record_entry(entry).expect("recorded"))
        })
        .0;
        let attempts: Vec<Attempt> = (0..100).map(attempt).collect();
        for attempt in &attempts {
            for name in ["trace.json", "result.json"] {
                let number = attempt.started_at;
                let text = format!("{name}{number}");
                cache
                    .put(text.as_bytes(), Durability::Plain)
                    .expect("stored");
            }
            cache.record_attempt(attempt).expect("recorded");
        }
        let found = |keys: &[Digest]| keys.iter().filter_map(|key| cache.outputs(key)).count();
        assert_eq!((found(&keys), found(&misses)), (keys.len(), 0));
        let look = median(|| timed(|| black_box(found(&keys))).0);
        let miss = median(|| timed(|| black_box(found(&misses))).0);
        let of_key = median(|| {
            timed(|| {
                attempts
                    .iter()
                    .for_each(|a| assert_eq!(cache.attempts(&a.key).len(), 1))
            })
            .0
        });
        let index = median(|| {
            let cache = Cache::open(folder.path()).expect("a cache");
            timed(|| assert!(cache.last_of(TaskKind::Parse, &entries[0].task).is_some())).0
        });
        println!(
            "| {count} | {:.1} µs | {:.1} µs | {:.1} µs | {:.1} µs | {index:.1?} |",
            per(keys.len(), record),
            per(keys.len(), look),
            per(keys.len(), miss),
            per(attempts.len(), of_key),
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
    println!();
    println!(
        "{n} small objects: put {:.1} µs, has {:.1} µs, get {:.1} µs each",
        per(n, put.0),
        per(n, has),
        per(n, get)
    );
}
