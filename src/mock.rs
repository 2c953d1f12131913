//! Programs that tests write and start.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
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

/// Starts a program and waits until it is the one that the kernel shows: `spawn` returns while the
/// child may still have the name and the command line of the thread that forked it.
pub fn running(command: &mut Command) -> Child {
    let child = command.spawn().expect("the program exists");
    let shown = format!("/proc/{}/cmdline", child.id());
    let name = command.get_program().as_encoded_bytes();
    while !fs::read(&shown).is_ok_and(|line| line.split(|byte| *byte == 0).next() == Some(name)) {
        thread::sleep(Duration::from_millis(1));
    }
    child
}
