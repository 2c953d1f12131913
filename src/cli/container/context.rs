//! What `container` hands to an engine: the files that an image is built from, and the arguments of an
//! interactive container.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::Path,
};

use minijinja::context;

use crate::{
    error::{Error, Problem, Result, Source},
    files::TRUSTED_VARIABLE,
    host::EngineKind,
    job::Vendor,
    recipe::{Recipe, Templates},
    run::container::{Needs, user_arguments, words},
    shipped::shipped_file,
};

/// The Dockerfile and the files beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    pub files: Vec<(String, Vec<u8>)>,
}

impl Context {
    /// `user`: a numeric `UID` or `UID:GID` that the container runs as; none: the base image's.
    pub fn render(
        root: &Path,
        recipe: &Recipe,
        vendor: Vendor,
        base: &str,
        user: Option<&str>,
    ) -> Result<Self> {
        const NAME: &str = "templates/Dockerfile.j2";
        check_word("image", base, |c| {
            c.is_ascii_alphanumeric() || "._/:@-".contains(c)
        })?;
        if let Some(user) = user {
            check_word("user", user, |c| c.is_ascii_digit() || c == ':')?;
        }
        let own = crate::files::read(&root.join(NAME)).ok();
        let text = own
            .as_deref()
            .or_else(|| shipped_file(NAME))
            .unwrap_or_default();
        let mut templates = Templates::default();
        templates.add(
            "Dockerfile.j2",
            Source::new(NAME, String::from_utf8_lossy(text)),
        )?;
        let requirements = format!("requirements.{}.txt", vendor.name());
        let requirements = recipe.files.iter().find(|(name, ..)| *name == requirements);
        let values = context! {
            recipe => recipe.file.id.clone(), vendor => vendor.name(), base, user, requirements => requirements.is_some(),
            // A program that ships with tprimat was linked before: no other torch will do.
            needs_this_torch => !recipe.file.require.programs.is_empty()
        };
        let dockerfile = templates.render("Dockerfile.j2", &values)?;
        let mut files = vec![(dockerfile.name, dockerfile.bytes)];
        files.extend(
            requirements.map(|(_, bytes, _)| ("requirements.txt".to_owned(), bytes.to_vec())),
        );
        Ok(Self { files })
    }

    #[must_use]
    pub fn dockerfile(&self) -> String {
        String::from_utf8_lossy(&self.files[0].1).into_owned()
    }
}

fn check_word(what: &str, text: &str, allowed: fn(char) -> bool) -> Result<()> {
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(allowed) {
        return Ok(());
    }
    Err(Error::invalid(Problem::new(format!(
        "`{text}` cannot be the name of an {what}"
    ))))
}

/// The declared variables of a container, in a file that only the caller can read and that goes
/// when this is dropped. They are never set on the engine's own program, which would obey them:
/// PATH, LD_PRELOAD, DOCKER_HOST.
pub struct EnvFile(tempfile::NamedTempFile);

impl EnvFile {
    pub fn write(env: &BTreeMap<String, String>) -> Result<Self> {
        let mut text = String::new();
        for (name, value) in env {
            if value.contains(['\n', '\r', '\0'])
                || name.contains(['=', '\n', '\0'])
                || name.is_empty()
            {
                return Err(Error::refused(
                    format!("the variable `{name}` cannot reach a container: it has several lines"),
                    "write its value in one line, or set it inside the container",
                ));
            }
            text += &format!("{name}={value}\n");
        }
        let write = || -> io::Result<tempfile::NamedTempFile> {
            let mut file = tempfile::Builder::new().prefix("tprimat-env-").tempfile()?;
            file.write_all(text.as_bytes())?;
            Ok(file)
        };
        write()
            .map(Self)
            .map_err(Error::io("cannot write a file in", std::env::temp_dir()))
    }

    /// What the engine is told of it.
    #[must_use]
    pub fn arguments(&self) -> [String; 2] {
        [
            "--env-file".to_owned(),
            self.0.path().to_string_lossy().into_owned(),
        ]
    }
}

/// What an engine needs before the image, for an interactive container of a vendor. `env`: names
/// only; their values are taken from the engine's own environment, so that none is seen in a list
/// of processes.
#[must_use]
pub fn shell_arguments(
    kind: EngineKind,
    vendor: Vendor,
    root: &str,
    more_mounts: &[String],
    is_terminal: bool,
    env: &[&str],
) -> Vec<String> {
    let mounts = [&[format!("{root}:{root}")], more_mounts].concat();
    let needs = Needs {
        vendor,
        gpus: None,
        mounts: &mounts,
        workdir: root,
    };
    if kind == EngineKind::Apptainer {
        // It passes the caller's environment on by itself.
        let arguments = needs
            .arguments(kind)
            .into_iter()
            .filter(|word| word != "--cleanenv");
        return std::iter::once("exec".to_owned())
            .chain(arguments)
            .collect();
    }
    let mut arguments = words("run --rm --interactive");
    if is_terminal {
        arguments.push("--tty".to_owned());
    }
    arguments.extend(user_arguments(kind));
    arguments.extend(words("--label tprimat=shell"));
    // The container's user may be another one than the project's owner, who has just asked for
    // this.
    arguments.extend(["--env".into(), format!("{TRUSTED_VARIABLE}={root}")]);
    arguments.extend(needs.arguments(kind));
    arguments.extend(
        env.iter()
            .flat_map(|name| ["--env".to_owned(), (*name).to_owned()]),
    );
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::RecipeSet;

    #[test]
    fn each_vendor_gets_its_devices() {
        let line =
            |kind, vendor| shell_arguments(kind, vendor, "/p", &[], false, &["HF_TOKEN"]).join(" ");
        let docker = EngineKind::Docker;
        assert!(line(docker, Vendor::Nvd).contains("--gpus all"));
        assert!(line(EngineKind::Podman, Vendor::Nvd).contains("--device nvidia.com/gpu=all"));
        assert!(
            line(docker, Vendor::Amd)
                .contains("--device=/dev/kfd --device=/dev/dri --group-add video")
        );
        let cpu = line(docker, Vendor::Cpu);
        assert!(!cpu.contains("gpu") && !cpu.contains("/dev/"), "{cpu}");
        assert!(
            cpu.ends_with("--volume /p:/p --workdir /p --env HF_TOKEN"),
            "{cpu}"
        );
        let user = format!(
            " --user {}:{} ",
            nix::unistd::geteuid(),
            nix::unistd::getegid()
        );
        assert!(cpu.contains(&user), "the files are the caller's: {cpu}");
        assert!(!line(EngineKind::Apptainer, Vendor::Cpu).contains("--user"));
    }

    #[test]
    fn declared_variables_reach_the_container_in_a_private_file() {
        use std::os::unix::fs::PermissionsExt;
        let env = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let file = EnvFile::write(&env("PATH", "./evil bin")).unwrap();
        let [option, path] = file.arguments();
        assert_eq!(
            (
                option.as_str(),
                std::fs::read_to_string(&path).unwrap().as_str()
            ),
            ("--env-file", "PATH=./evil bin\n")
        );
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        drop(file);
        assert!(!Path::new(&path).exists());
        assert!(
            EnvFile::write(&env("A", "1\nLD_PRELOAD=x")).is_err()
                && EnvFile::write(&env("A=1\nB", "x")).is_err()
        );
    }

    #[test]
    fn a_dockerfile_has_the_vendors_requirements_and_no_line_that_a_name_brought() {
        let root = Path::new("/nonexistent");
        let set = RecipeSet::load(root).unwrap();
        let render = |id: &str, base: &str, user| {
            Context::render(root, &set.recipes[id], Vendor::Amd, base, user)
        };
        let prim = render("prim", "rocm/primus:v25.9_gfx942", Some("1000:1000")).unwrap();
        assert!(
            prim.dockerfile()
                .contains("\nFROM rocm/primus:v25.9_gfx942\n")
        );
        assert!(prim.dockerfile().contains("\nUSER 1000:1000\n"));
        assert_eq!(prim.files[1].0, "requirements.txt");
        let tran = render("tran", "rocm/pytorch:latest", None).unwrap();
        for part in [
            "sed -i '/^torch==/d' /opt/tprimat/requirements.txt",
            "-c /opt/tprimat/base.txt",
        ] {
            assert!(
                tran.dockerfile().contains(part),
                "a torch of the base image stays: {}",
                tran.dockerfile()
            );
        }
        let cmd = render("cmd", "busybox", None).unwrap();
        assert_eq!(cmd.files.len(), 1);
        assert!(!cmd.dockerfile().contains("pip"));
        for base in ["", "a b", "a\nRUN x", "-x", "$(x)"] {
            assert!(render("cmd", base, None).is_err(), "{base:?}");
        }
        assert!(render("cmd", "busybox", Some("root\nRUN x")).is_err());
    }
}
