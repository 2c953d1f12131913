//! Whose a folder is: whoever can write to a project, a cache or a folder of locks decides what
//! tprimat does as its caller.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use nix::unistd::{Uid, User, geteuid};

use crate::error::{Error, Problem, Result};

/// Folders that the caller trusts whoever owns them, as a list with colons; `*` is all of them.
pub const TRUSTED_VARIABLE: &str = "TPRIMAT_SAFE_DIRECTORY";

const WRITABLE_BY_ALL: u32 = 0o002;

/// Refuses a file or folder that another user than the caller and root controls. `what`: `the
/// project`.
pub fn require_own(what: &str, path: &Path) -> Result<()> {
    let trusted = std::env::var_os(TRUSTED_VARIABLE).unwrap_or_default();
    match stranger(path, &is_caller).map_err(Error::io("cannot look at", path))? {
        Some(why) if !is_named(path, &trusted) => Err(Error::Failed {
            message: format!(
                "{what} {} {why}, who could make tprimat run programs as you",
                path.display()
            ),
            help: Some(format!(
                "if you trust it: export {TRUSTED_VARIABLE}={}",
                folder_of(path).display()
            )),
        }),
        _ => Ok(()),
    }
}

/// Which other user controls a file or folder, in words, unless the caller named it as trusted.
#[must_use]
pub fn controlled_by(path: &Path) -> Option<String> {
    let trusted = std::env::var_os(TRUSTED_VARIABLE).unwrap_or_default();
    let why = stranger(path, &is_caller).ok()??;
    (!is_named(path, &trusted)).then_some(why)
}

/// Refuses a path below `root`, a project, that leads out of it by a link or `..`: whoever wrote
/// the project would choose which file of the caller's is read, and messages quote what cannot be
/// read. Refuses it also where another user controls it or a folder on the way, as the project
/// itself would be. What is not there is not refused.
pub fn require_inside(root: &Path, path: &Path) -> Result<()> {
    let trusted = std::env::var_os(TRUSTED_VARIABLE).unwrap_or_default();
    if !is_named(root, &trusted) {
        let below = path
            .ancestors()
            .take_while(|part| *part != root && part.starts_with(root));
        for part in below.filter(|part| part.exists()) {
            let what = if part.is_dir() {
                "the folder"
            } else {
                "the file"
            };
            require_own(what, part)?;
        }
    }
    if path.starts_with(root)
        && let (Ok(real), Ok(home)) = (path.canonicalize(), root.canonicalize())
        && !real.starts_with(&home)
        && !is_named(&real, &trusted)
    {
        let folder = folder_of(&real);
        let problem = Problem::new(format!(
            "{} leads out of the project, to {}",
            path.display(),
            real.display()
        ));
        let help = format!(
            "copy the file into the project; if you trust the link: export {TRUSTED_VARIABLE}={}",
            folder.display()
        );
        return Err(Error::invalid(problem.help(help)));
    }
    Ok(())
}

/// Is it a regular file or a folder of the caller's own, and not a link?
#[must_use]
pub fn is_own(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| is_own_entry(&found))
}

/// Is what was found at a path, without following links, the caller's own and not a link?
#[must_use]
pub fn is_own_entry(found: &fs::Metadata) -> bool {
    !found.is_symlink() && found.uid() == geteuid().as_raw()
}

/// Who else controls it, in words; a link counts as well as what it leads to.
fn stranger(path: &Path, is_trusted: &dyn Fn(u32) -> bool) -> io::Result<Option<String>> {
    let found = fs::metadata(path)?;
    for owner in [fs::symlink_metadata(path)?.uid(), found.uid()] {
        if !is_trusted(owner) {
            return Ok(Some(format!("belongs to {}", name_of(owner))));
        }
    }
    let is_open = found.permissions().mode() & WRITABLE_BY_ALL != 0;
    Ok(is_open.then(|| "can be written to by every user of this host".to_owned()))
}

/// The caller, root, or who called `sudo`.
fn is_caller(owner: u32) -> bool {
    let me = geteuid();
    let before_sudo = || {
        std::env::var("SUDO_UID")
            .ok()
            .and_then(|id| id.parse::<u32>().ok())
    };
    owner == me.as_raw() || owner == 0 || me.is_root() && before_sudo() == Some(owner)
}

fn is_named(path: &Path, trusted: &OsStr) -> bool {
    let folder = folder_of(path).canonicalize().ok();
    std::env::split_paths(trusted).any(|named| {
        named == Path::new("*") || folder.is_some() && named.canonicalize().ok() == folder
    })
}

fn folder_of(path: &Path) -> PathBuf {
    match path.is_dir() {
        true => path.to_owned(),
        false => path.parent().unwrap_or(path).to_owned(),
    }
}

fn name_of(user: u32) -> String {
    match User::from_uid(Uid::from_raw(user)) {
        Ok(Some(user)) => format!("the user {}", user.name),
        _ => format!("the user {user}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{Durability, create_dir_all, write_atomically};

    #[test]
    fn other_owners_and_open_folders_are_strangers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        write_atomically(&path, b"", Durability::Plain).unwrap();
        require_own("the file", &path).unwrap();
        let said = |path: &Path| stranger(path, &|owner| owner != geteuid().as_raw()).unwrap();
        assert!(
            said(&path).unwrap().starts_with("belongs to the user"),
            "{:?}",
            said(&path)
        );
        let open = folder.path().join("open");
        create_dir_all(&open).unwrap();
        nix::sys::stat::fchmodat(
            nix::fcntl::AT_FDCWD,
            &open,
            nix::sys::stat::Mode::from_bits_truncate(0o1777),
            nix::sys::stat::FchmodatFlags::FollowSymlink,
        )
        .unwrap();
        let error = require_own("the folder", &open).unwrap_err().to_string();
        assert!(
            error.contains("every user"),
            "a sticky folder is open too: {error}"
        );
        assert!(is_named(&open, OsStr::new("/nowhere:*")) && is_named(&open, open.as_os_str()));
        assert!(!is_named(&open, folder.path().as_os_str()) && !is_named(&open, OsStr::new("")));
    }

    #[test]
    fn a_path_that_leads_out_of_the_project_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (root, secret) = (
            folder.path().join("project"),
            folder.path().join("credentials"),
        );
        write_atomically(&secret, b"key", Durability::Plain).unwrap();
        write_atomically(&root.join("real/matrix.toml"), b"x", Durability::Plain).unwrap();
        let link =
            |name: &str, target: &str| std::os::unix::fs::symlink(target, root.join(name)).unwrap();
        link("inside.toml", "real/matrix.toml");
        link("outside.toml", "../credentials");
        link("folder", "..");
        require_inside(&root, &root.join("inside.toml")).unwrap();
        for name in [
            "outside.toml",
            "folder/credentials",
            "real/../../credentials",
        ] {
            let error = require_inside(&root, &root.join(name)).unwrap_err();
            assert!(
                error.to_string().contains("leads out of the project"),
                "{name}: {error}"
            );
        }
        require_inside(&root, &secret).expect("the caller named it");
        require_inside(&root, &root.join("none")).unwrap();
        // What anybody may put beside a file is anybody's to choose, also where it is not there yet.
        let open = nix::sys::stat::Mode::from_bits_truncate(0o777);
        let follow = nix::sys::stat::FchmodatFlags::FollowSymlink;
        nix::sys::stat::fchmodat(nix::fcntl::AT_FDCWD, &root.join("real"), open, follow).unwrap();
        for name in ["real/matrix.toml", "real/none", "real"] {
            let error = require_inside(&root, &root.join(name)).unwrap_err();
            assert!(error.to_string().contains("every user"), "{name}: {error}");
        }
    }

    #[test]
    fn a_link_is_never_ones_own() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        assert!(is_own(folder.path()) && !is_own(&link) && !is_own(&folder.path().join("nothing")));
    }
}
