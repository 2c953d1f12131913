//! Who owns a device: one flock file each in a folder that all tprimats of a host share.
//!
//! The kernel drops a lock when its holder dies, so nothing here goes stale. What the file says of its
//! holder is for people, and names the run of a supervisor that was killed: that run's processes may
//! still be on the device.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Read, Seek, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{
    libc,
    sys::stat::{Mode, fchmod},
};
use serde::{Deserialize, Serialize};

use super::process::Tree;
use crate::{
    error::{Error, Result},
    files,
};

/// Who holds a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The supervisor's.
    pub pid: u32,
    pub run_id: String,
    /// The folder in which its trainer runs, which is its project's.
    pub project: PathBuf,
}

/// Every user of the host takes the same locks.
const OPEN_TO_ALL: u32 = 0o666;

/// Held until dropped, or until this process ends in whatever way.
#[derive(Debug)]
pub(crate) struct DeviceLock {
    file: File,
    /// Is the name of the run to be taken out of it again?
    pub signed: bool,
}

pub(crate) enum Claim {
    Got(DeviceLock),
    /// Held by someone else: who, if the holder said so.
    Busy(Option<Holder>),
}

/// Takes the lock of `device` if it is free: alone, or beside others that share it.
pub(crate) fn claim(
    folder: &Path,
    device: &str,
    exclusive: bool,
    (run_id, project): (&str, &Path),
) -> Result<Claim> {
    files::create_shared_dir(folder)?;
    let path = lock_path(folder, device)?;
    let mut file = open(&path).map_err(Error::io("cannot open the device lock", &path))?;
    let locked = if exclusive {
        file.try_lock()
    } else {
        file.try_lock_shared()
    };
    match locked {
        // Whoever else is told of this device: what a killed run left of itself still has it.
        Ok(()) if exclusive && left_by(&mut file, run_id).is_some() => {
            Ok(Claim::Busy(signature(&mut file)))
        }
        Ok(()) => {
            let signed = sign(&mut file, run_id, project).is_ok();
            Ok(Claim::Got(DeviceLock { file, signed }))
        }
        Err(TryLockError::WouldBlock) => Ok(Claim::Busy(holder(&mut file))),
        Err(TryLockError::Error(error)) => Err(Error::io("cannot lock", path)(error)),
    }
}

/// Who holds `device` now, if anybody does, and whether they said who they are. Makes no lock.
#[must_use]
pub fn device_holder(folder: &Path, device: &str) -> Option<Option<Holder>> {
    let mut file = look_at(folder, device)?;
    // For an instant only: a run that asks meanwhile asks again.
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Some(holder(&mut file)),
        _ => None,
    }
}

/// The run that held `device` last and did not sign it off, because its supervisor was killed or could
/// not end all of its processes, and those that are left: nobody holds the lock, and they may hold the
/// device.
pub(crate) fn left_on(folder: &Path, device: &str) -> Option<(Holder, Vec<i32>)> {
    let mut file = look_at(folder, device)?;
    file.try_lock().ok()?;
    left_by(&mut file, "")
}

/// The same of a lock that this process holds; `own`: the run that asks.
fn left_by(file: &mut File, own: &str) -> Option<(Holder, Vec<i32>)> {
    let holder = signature(file).filter(|holder| holder.run_id != own)?;
    let left = Tree::marked(&holder.run_id).pids();
    (!left.is_empty()).then_some((holder, left))
}

fn look_at(folder: &Path, device: &str) -> Option<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags);
    options.open(lock_path(folder, device).ok()?).ok()
}

/// A name that leads elsewhere is not one of a device.
fn lock_path(folder: &Path, device: &str) -> Result<PathBuf> {
    if device.is_empty() || device.starts_with('.') || device.contains('/') {
        let message = format!("`{device}` cannot be the name of a device");
        return Err(Error::failed(message));
    }
    Ok(folder.join(format!("{device}.lock")))
}

/// Another user's lock file can be locked, though not signed. The folder may be open to all, so
/// whatever else lies under the name is an error: a link, a pipe that would be waited for, a second
/// name of somebody's file.
fn open(path: &Path) -> io::Result<File> {
    let with = |write: bool, create: bool| {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut options = OpenOptions::new();
        options.read(true).write(write).create(create);
        options.mode(OPEN_TO_ALL).custom_flags(flags).open(path)
    };
    let file = with(true, false).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => with(true, true),
        io::ErrorKind::PermissionDenied => with(false, false),
        _ => Err(error),
    })?;
    let found = file.metadata()?;
    if !found.is_file() || found.nlink() > 1 {
        let message = "it is not a lock file, but a pipe, a folder or a second name of some file; its owner must remove it";
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    // Whatever our umask, or a lock that we made would shut other users out for ever; of another's nothing
    // is changed.
    let _ = fchmod(&file, Mode::from_bits_truncate(OPEN_TO_ALL));
    Ok(file)
}

fn sign(file: &mut File, run_id: &str, project: &Path) -> io::Result<()> {
    let holder = Holder {
        pid: std::process::id(),
        run_id: run_id.to_owned(),
        project: project.to_owned(),
    };
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(serde_json::to_string(&holder)?.as_bytes())
}

fn holder(file: &mut File) -> Option<Holder> {
    // One of several sharers may have signed and gone.
    let is_there = |holder: &Holder| Path::new("/proc").join(holder.pid.to_string()).exists();
    signature(file).filter(is_there)
}

fn signature(file: &mut File) -> Option<Holder> {
    file.rewind().ok()?;
    let mut text = String::new();
    file.take(4096).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

impl Drop for DeviceLock {
    fn drop(&mut self) {
        if self.signed {
            let _ = self.file.set_len(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::process::RUN_ID_VARIABLE;

    fn try_claim(folder: &Path, exclusive: bool, run: &str) -> Claim {
        claim(folder, "cpu", exclusive, (run, Path::new("/p"))).unwrap()
    }

    #[test]
    fn exclusive_keeps_everyone_out_and_says_who_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let Claim::Got(held) = try_claim(folder.path(), true, "run-a") else {
            panic!("it was free")
        };
        for exclusive in [true, false] {
            let Claim::Busy(holder) = try_claim(folder.path(), exclusive, "run-b") else {
                panic!("it was held")
            };
            assert_eq!(
                holder,
                Some(Holder {
                    pid: std::process::id(),
                    run_id: "run-a".into(),
                    project: "/p".into(),
                })
            );
        }
        drop(held);
        assert!(matches!(
            try_claim(folder.path(), true, "run-b"),
            Claim::Got(_)
        ));
    }

    /// A killed holder signs nothing off; what is left of its run is on the device until it ends.
    #[test]
    fn what_a_killed_holder_left_on_a_device_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let run = format!("devices-test-{}", std::process::id());
        let Claim::Got(held) = try_claim(folder.path(), true, &run) else {
            panic!("it was free")
        };
        let of_killed = std::fs::read(folder.path().join("cpu.lock")).unwrap();
        drop(held);
        assert!(left_on(folder.path(), "cpu").is_none());
        let mut worker = std::process::Command::new("sleep")
            .arg("60")
            .env(RUN_ID_VARIABLE, &run)
            .spawn()
            .expect("sleep exists");
        #[expect(
            clippy::disallowed_methods,
            reason = "plays a supervisor that was killed"
        )]
        std::fs::write(folder.path().join("cpu.lock"), of_killed).unwrap();
        let mut left = None;
        for _ in 0..5000 {
            left = left_on(folder.path(), "cpu");
            if left.is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let (holder, pids) = left.expect("the worker is known by its mark");
        assert_eq!(
            (holder.run_id, pids),
            (run, vec![worker.id().cast_signed()])
        );
        worker.kill().unwrap();
        worker.wait().unwrap();
        assert!(left_on(folder.path(), "cpu").is_none());
    }

    #[test]
    fn sharers_keep_only_the_exclusive_out() {
        let folder = tempfile::tempdir().unwrap();
        let Claim::Got(_a) = try_claim(folder.path(), false, "a") else {
            panic!("it was free")
        };
        let Claim::Got(_b) = try_claim(folder.path(), false, "b") else {
            panic!("it is shared")
        };
        assert!(matches!(
            try_claim(folder.path(), true, "c"),
            Claim::Busy(Some(_))
        ));
    }

    #[test]
    fn a_lock_file_serves_every_user_whatever_the_umask_of_the_first() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        // Not `umask(077)`, which is the whole process's: other tests run in it.
        let path = folder.path().join("cpu.lock");
        drop(open(&path).unwrap());
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o666);
    }

    #[test]
    fn what_is_no_lock_file_is_an_error_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cpu.lock");
        let refused = || claim(folder.path(), "cpu", true, ("a", Path::new("/p"))).is_err();
        nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o666)).unwrap();
        assert!(refused(), "a pipe");
        std::fs::remove_file(&path).unwrap();
        let file = folder.path().join("file");
        files::write_atomically(&file, b"precious", files::Durability::Plain).unwrap();
        std::os::unix::fs::symlink(&file, &path).unwrap();
        assert!(refused(), "a link");
        std::fs::remove_file(&path).unwrap();
        std::fs::hard_link(&file, &path).unwrap();
        assert!(refused(), "a second name");
        assert_eq!(files::read(&file).unwrap(), b"precious");
    }

    #[test]
    fn a_device_cannot_name_a_file_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        for device in ["", "..", "a/b", "/etc/x", ".hidden"] {
            assert!(
                claim(folder.path(), device, true, ("a", Path::new("/p"))).is_err(),
                "{device}"
            );
        }
    }
}
