//! The remote cache over S3's protocol, against a server of its own on the loopback address: moto's
//! (`pip install 'moto[server]'`), which speaks the protocol and keeps everything in memory.
//! `cargo test --features remote --test services s3` runs these tests.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Instant,
};

use tprimat::{
    cache::{Attempt, Cache, Output},
    digest::Digest,
    files::Durability,
    job::RunOutcome,
};

use crate::support::{Project, Ran, TRAINER, files_below};

const SECRET: &str = "hunter2-the-secret-key-of-the-bucket";
const ADDRESS: &str = "s3://runs/of/us";

/// A server that ends with the test.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start() -> Self {
        let mut child = Command::new("moto_server")
            .args(["-H", "127.0.0.1", "-p", "0"])
            .env("PYTHONUNBUFFERED", "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| {
                panic!("moto_server: {e}; `pip install 'moto[server]'` installs it, and PATH names its folder")
            });
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let port = loop {
            let line = lines.next().expect("moto_server names its port").unwrap();
            if let Some((_, rest)) = line.split_once("http://127.0.0.1:") {
                let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
                break digits.parse().unwrap();
            }
        };
        // Whoever logs must be read.
        std::thread::spawn(move || lines.for_each(drop));
        let server = Self { child, port };
        let made = server.request("PUT /runs");
        assert!(made.contains(" 200 "), "{made}");
        server
    }

    /// A request of the test's own, past tprimat.
    fn request(&self, what: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let head = format!(
            "{what} HTTP/1.0\r\nHost: 127.0.0.1:{}\r\nContent-Length: 0\r\nAuthorization: AWS somebody:else\r\n\r\n",
            self.port
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn run(&self, project: &Project, arguments: &[&str]) -> Ran {
        let output = project
            .tprimat(arguments)
            .env("TPRIMAT_REMOTE", ADDRESS)
            .env("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.port))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .output()
            .unwrap();
        output.into()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

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
    let stat = server
        .run(&first, &["cache", "stat", "--json"])
        .ends_with(0)
        .json();
    assert_eq!(stat["remote"]["only_there"], 0, "{stat}");
    assert_eq!(stat["remote"]["only_here"], 0, "{stat}");
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
    let name = listed
        .split("<Key>")
        .nth(1)
        .unwrap()
        .split('<')
        .next()
        .unwrap();
    let put = server.request(&format!("PUT /runs/{name}"));
    assert!(put.contains(" 200 "), "{name}: {put}");
    // A first pull finds an empty file in place of a run.
    second.write("tprimat.lock", &first.read("tprimat.lock"));
    let ran = server.run(&second, &["cache", "pull"]).ends_with(1);
    assert!(ran.stdout.contains("3 runs pulled"), "{ran:?}");
    assert!(ran.stdout.contains("is empty"), "{ran:?}");
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

/// How long 1,000 runs take to come: `-- --ignored --nocapture a_thousand` prints it.
#[test]
#[ignore = "a measurement"]
fn a_thousand_runs_are_pulled() {
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
                id: format!("20261121T023705.{number:06}Z-1a2b3c4d"),
                key: Digest::of(&preimage),
                task: format!("train {number}"),
                preimage,
                generation: 0,
                outcome: RunOutcome::Ok,
                outputs: outputs.to_vec(),
                started_at: 1.0,
                ended_at: 2.0,
                host: "a".into(),
                suspect: None,
                repeats_planned: None,
                set_aside: None,
                undeclared: Default::default(),
                is_held: false,
                recorded: 0,
            })
            .unwrap();
    }
    drop(cache);
    for (project, command) in [(&first, "push"), (&second, "pull"), (&second, "pull")] {
        let begun = Instant::now();
        let ran = server.run(project, &["cache", command]).ends_with(0);
        eprintln!(
            "{command}: {:.2} s: {}",
            begun.elapsed().as_secs_f64(),
            ran.stdout.trim()
        );
    }
}
