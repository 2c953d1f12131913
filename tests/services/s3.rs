//! The remote cache over S3's protocol, against a server of its own on the loopback address: moto's
//! (`pip install 'moto[server]'`), which speaks the protocol and keeps everything in memory.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Instant};

use tprimat::{
    cache::{Attempt, Cache, Output},
    files::Durability,
};

use crate::{
    fixtures::s3::{SECRET, Server},
    support::{Project, TRAINER, files_below},
};

const MATRIX: &str = r#"[matrix]
name = "two"
platform = "cpu"
framework = "cmd"
model = ["tiny", "wide"]
parallelism = "single"
repeats = 2
"#;

fn host() -> Project {
    let project = Project::new(MATRIX);
    let trainer = format!("env > \"$TPRIMAT_PROJECT_DIR/environment\"\n{TRAINER}");
    project.write("trainer.sh", &trainer);
    project
}

fn published(project: &Project) -> BTreeMap<PathBuf, Vec<u8>> {
    let output = project.path("output");
    let files = files_below(&output).into_iter();
    files
        .map(|path| {
            let bytes = fs::read(&path).unwrap();
            (path.strip_prefix(&output).unwrap().to_owned(), bytes)
        })
        .collect()
}

#[test]
fn two_hosts_build_one_matrix_and_publish_the_same_bytes() {
    let server = Server::start();
    let (first, second) = (host(), host());
    let ran = server
        .run(&first, &["build", "--only", "cpu/cmd/tiny"])
        .ends_with(0);
    assert!(ran.stderr.contains("2 runs pushed to s3://runs"), "{ran:?}");
    second.write("tprimat.lock", &first.read("tprimat.lock"));
    let ran = server.run(&second, &["build"]).ends_with(0);
    assert!(
        ran.stderr.contains("2 runs pulled from s3://runs"),
        "{ran:?}"
    );
    server.run(&first, &["build"]).ends_with(0);
    assert_eq!((first.launches(), second.launches()), (2, 2));
    assert_eq!(published(&first), published(&second));
    for command in [["cache", "push", "--json"], ["cache", "pull", "--json"]] {
        let moved = server.run(&first, &command).ends_with(0).json();
        assert_eq!(moved["runs"], 0, "{moved}");
    }
    // The key of the bucket went to the server and nowhere else.
    for project in [&first, &second] {
        for path in files_below(project.folder()) {
            let bytes = fs::read(&path).unwrap();
            let found = bytes
                .windows(SECRET.len())
                .any(|part| part == SECRET.as_bytes());
            assert!(!found, "the secret is in {}", path.display());
        }
        let environment = project.read("environment");
        assert!(!environment.contains("AWS_"), "{environment}");
    }
}

#[test]
fn what_is_there_is_not_overwritten_and_what_is_poisoned_is_not_taken() {
    let server = Server::start();
    let (first, second) = (host(), host());
    server.run(&first, &["build"]).ends_with(0);
    let listed = server.request("GET /runs?list-type=2");
    let names = listed
        .split("<Key>")
        .filter_map(|part| part.split('<').next());
    let mut records =
        names.filter(|name| name.contains("/records/") || name.starts_with("records/"));
    let name = records.next().unwrap();
    let put = server.request(&format!("PUT /runs/{name}"));
    assert!(put.contains(" 200 "), "{name}: {put}");
    // A first pull finds an empty file in place of a run.
    second.write("tprimat.lock", &first.read("tprimat.lock"));
    let ran = server.run(&second, &["cache", "pull"]).ends_with(1);
    assert!(ran.stdout.contains("3 runs pulled"), "{ran:?}");
    assert!(ran.stdout.contains("is damaged"), "{ran:?}");
    // Whoever has the run does not write over what is there.
    let ran = server.run(&first, &["cache", "push"]).ends_with(0);
    assert!(ran.stdout.contains("0 runs pushed"), "{ran:?}");
    server.run(&second, &["build"]).ends_with(0);
    assert_eq!(second.launches(), 1);
}

#[test]
fn a_server_that_is_gone_costs_one_note() {
    let mut server = Server::start();
    server.stop();
    let project = host();
    let ran = server.run(&project, &["build"]).ends_with(0);
    assert_eq!(
        ran.stderr.matches("cannot be reached").count(),
        1,
        "{ran:?}"
    );
    assert!(!ran.stderr.contains(SECRET), "{ran:?}");
    assert_eq!(project.launches(), 4);
}

/// `-- --nocapture a_thousand` prints how long each command took.
#[test]
fn a_thousand_runs_are_pushed_and_pulled_once() {
    let server = Server::start();
    let (first, second) = (host(), host());
    let cache = Cache::open(&first.path("cache")).unwrap();
    for number in 0..1000 {
        let preimage = format!("tprimat-key 1 train\nseed = {number}\n");
        let log: String = (0..300)
            .map(|step| format!("{{\"event\":\"step\",\"step\":{step},\"step_time_seconds\":0.{:06},\"tokens\":32}}\n", (number * 7919 + step * 104_729) % 1_000_000))
            .collect();
        let times: String = log
            .lines()
            .map(|line| format!("{} {}\n", number, line.len() * 31))
            .collect();
        let outputs = [("log", &log), ("times", &times)].map(|(name, text)| Output {
            name: name.to_owned(),
            digest: cache.put(text.as_bytes(), Durability::Plain).unwrap(),
            size: text.len() as u64,
        });
        cache
            .record_attempt(&Attempt {
                started_at: 1.0,
                ended_at: 2.0,
                host: "a".into(),
                ..Attempt::ok(
                    format!("20261121T023705.{number:06}Z-1a2b3c4d"),
                    format!("train {number}"),
                    preimage,
                    outputs.to_vec(),
                )
            })
            .unwrap();
    }
    drop(cache);
    for (project, command, said) in [
        (&first, "push", "1000 runs pushed"),
        (&second, "pull", "1000 runs pulled"),
        (&second, "pull", "no other runs"),
    ] {
        let begun = Instant::now();
        let ran = server.run(project, &["cache", command]).ends_with(0);
        eprintln!(
            "{command}: {:.2} s: {}",
            begun.elapsed().as_secs_f64(),
            ran.stdout.trim()
        );
        assert!(ran.stdout.replace(',', "").contains(said), "{ran:?}");
    }
    let pulled = Cache::open(&second.path("cache")).unwrap().all_attempts();
    assert_eq!(pulled.len(), 1000);
}
