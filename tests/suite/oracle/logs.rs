//! Every log, as `parse --json` reads it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    flat::{Form, Lines},
    held::{Sections, hold},
};
use crate::support::{Project, files_below};

/// Logs of our own runs of frameworks, beside what was measured.
const MEASURED: [&str; 4] = [
    "frameworks-cpu",
    "frameworks-h200",
    "multi-gpu-h200",
    "single-gpu-h100",
];

const TRACE: Form = Form {
    dropped: &["schema_version", "seen_at"],
    sentences: &["detail"],
    names: &[],
    digits: 15,
};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The logs of the fixtures, whole, below a folder of the project.
pub fn unpack(project: &Project) {
    let packed = root().join("tests/fixtures/oracle/logs");
    for path in files_below(&packed) {
        let name = path.strip_prefix(&packed).unwrap().with_extension("");
        let bytes = zstd::decode_all(fs::File::open(&path).unwrap()).unwrap();
        place(project, &name, &bytes);
    }
    for path in files_below(&root().join("tests/fixtures/logs")) {
        if path.extension().is_some_and(|e| e == "log") {
            let name = Path::new("fixtures").join(path.file_name().unwrap());
            place(project, &name, &fs::read(&path).unwrap());
        }
    }
}

fn place(project: &Project, name: &Path, bytes: &[u8]) {
    let path = project.path("logs").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

#[test]
fn every_log_is_read_as_it_was() {
    let project = Project::empty();
    unpack(&project);
    for folder in MEASURED {
        let logs = root().join("docs/measured").join(folder).join("logs");
        for path in files_below(&logs) {
            let name = Path::new("measured").join(folder);
            let stored = fs::read(&path).unwrap();
            let (file, log) = match path.extension().is_some_and(|end| end == "zst") {
                true => (path.file_stem(), zstd::decode_all(&*stored).unwrap()),
                false => (path.file_name(), stored),
            };
            place(&project, &name.join(file.unwrap()), &log);
        }
    }
    let folder = project.path("logs");
    let mut found = Sections::new();
    for path in files_below(&folder) {
        let ran = project.run(&["parse", "--json", path.to_str().unwrap()]);
        let mut lines = Lines::new();
        match ran.code {
            Some(0) => TRACE.add("", &ran.json(), &mut lines),
            code => {
                lines.insert("refused".to_owned(), format!("exit code {}", code.unwrap()));
            }
        }
        let name = path.strip_prefix(&folder).unwrap().display().to_string();
        found.insert(name, lines);
    }
    assert!(found.len() > 100, "{} logs", found.len());
    hold("logs.txt", &found);
}
