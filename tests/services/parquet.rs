//! Where Parquet goes, which only a build with the cargo feature writes; what is in it is tested
//! beside the writer. `cargo test --features parquet --test services parquet` runs this test.

use crate::support::{Project, Ran, TPRIMAT};

#[test]
fn parquet_goes_to_a_file_and_not_to_a_terminal() {
    let project = Project::of_two();
    project.run(&["build"]).ends_with(0);
    let mut compare = project.tprimat(&["compare", "--format", "parquet"]);
    let written = compare.output().unwrap();
    assert!(written.status.success(), "{written:?}");
    let [begins, ends] = [
        &written.stdout[..4],
        &written.stdout[written.stdout.len() - 4..],
    ];
    assert_eq!([begins, ends], [b"PAR1"; 2]);
    assert_eq!(compare.output().unwrap().stdout, written.stdout);

    let command = format!("{TPRIMAT} compare --format parquet");
    let on_terminal: Ran = project
        .command("script")
        .args(["-qec", &command, "/dev/null"])
        .output()
        .unwrap()
        .into();
    let said = on_terminal.ends_with(2).stdout;
    assert!(
        said.contains("stdout is a terminal") && !said.contains("PAR1"),
        "{said}"
    );
}
