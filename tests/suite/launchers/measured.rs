//! Logs of real frameworks, kept in docs/measured: all steps are read, and nothing contradicts the
//! job that each was launched for.

use std::{fs, path::Path};

use tprimat::{
    logs,
    plan::{Plan, PlanRequest},
    results::{Claim, attest},
};

use super::render::{ROOT, supported_of};

/// A log has the name of its cell, and behind it which version of the framework it is of, if there
/// are several.
#[test]
fn logs_of_real_frameworks_are_attested() {
    for (matrix, folder) in [
        ("h200", "frameworks-h200"),
        ("frameworks", "frameworks-cpu"),
    ] {
        let root = Path::new(ROOT).join("tests/frameworks");
        let request = PlanRequest {
            root,
            matrix: Some(matrix.into()),
            ..PlanRequest::default()
        };
        let plan = Plan::load(&request).unwrap_or_else(|e| panic!("{e}"));
        let logs = fs::read_dir(
            Path::new(ROOT)
                .join("docs/measured")
                .join(folder)
                .join("logs"),
        )
        .unwrap();
        let logs: Vec<_> = logs.map(|entry| entry.unwrap().path()).collect();
        assert!(!logs.is_empty(), "{folder}");
        for log in logs {
            let name = log.file_name().unwrap().to_str().unwrap();
            let cell = supported_of(&plan).find(|(id, ..)| name.starts_with(&id.replace('/', "-")));
            let (id, recipe, job) =
                cell.unwrap_or_else(|| panic!("{folder}/{name} belongs to no cell"));
            let trace = logs::parse(
                &recipe.file.log,
                &zstd::decode_all(fs::File::open(&log).unwrap()).unwrap(),
            );
            assert_eq!(trace.steps.len() as u64, job.train_iters, "{id}");
            let attestation = attest(&trace, &Claim::of(job), true);
            let contradicted: Vec<_> = attestation.contradicted().collect();
            assert!(contradicted.is_empty(), "{id}: {contradicted:#?}");
        }
    }
}
