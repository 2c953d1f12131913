//! Programs that stand in for others in tests.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// Makes `path` a program. A process of its own writes it: had this one the file open for writing, a
/// child that another test forks just then would have it too, and the kernel executes no such file.
pub fn program(path: &Path, content: impl AsRef<[u8]>) {
    let mut install = Command::new("install")
        .args(["-D", "-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = install.stdin.take().unwrap();
    stdin.write_all(content.as_ref()).unwrap();
    drop(stdin);
    assert!(install.wait().unwrap().success(), "{}", path.display());
}
