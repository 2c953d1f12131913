//! What sbatch is told of the job of a run.

use std::path::Path;

use super::claim::job_name;
use crate::{
    job::Vendor,
    run::spec::{RUN_ARGUMENT, RunSpec},
};

/// The last word of `tprimat __run DIR job`, the supervisor of the run in DIR inside its job.
pub(crate) const JOB: &str = "job";

/// `tprimat`: the program that the job executes.
pub(super) fn arguments(spec: &RunSpec, tprimat: &Path) -> Vec<String> {
    let mut arguments = vec![
        // Nothing of the caller's shell that the run did not declare.
        "--export=PATH,HOME,LD_LIBRARY_PATH,TPRIMAT_LOCK_DIR".to_owned(),
        format!("--nodes={}", spec.nodes()),
        format!("--ntasks={}", spec.nodes()),
        "--ntasks-per-node=1".into(),
    ];
    if let Some(job) = &spec.job {
        let settings = &job.settings;
        let stated = [
            ("account", &settings.account),
            ("partition", &settings.partition),
            ("qos", &settings.qos),
            ("constraint", &settings.constraint),
            ("time", &settings.time),
        ];
        for (name, value) in stated {
            arguments.extend(value.as_ref().map(|value| format!("--{name}={value}")));
        }
        let gres = match &settings.gres {
            Some(gres) => Some(gres.clone()).filter(|gres| !gres.is_empty()),
            None => (job.vendor != Vendor::Cpu).then(|| format!("gpu:{}", job.num_gpus)),
        };
        arguments.extend(gres.map(|gres| format!("--gres={gres}")));
        arguments.extend(settings.cpus.map(|cpus| format!("--cpus-per-task={cpus}")));
        arguments.extend(settings.exclusive.then(|| "--exclusive".to_owned()));
        arguments.extend(settings.options.iter().cloned());
    }
    let (program, dir) = (tprimat.to_string_lossy(), spec.dir.to_string_lossy());
    let command = [&*program, RUN_ARGUMENT, &*dir, JOB]
        .map(|word| shlex::try_quote(word).unwrap_or_default());
    // Last, so that no option of the configuration replaces them: without its name and folder
    // nobody finds the job again, and a run that begins again in the same folder would mix two
    // logs.
    arguments.extend([
        "--parsable".to_owned(),
        format!("--output={dir}/supervisor.log"),
        format!("--chdir={dir}"),
        format!("--job-name={}", job_name(&spec.run_id)),
        "--no-requeue".to_owned(),
        format!("--wrap=exec {}", command.join(" ")),
    ]);
    arguments
}

#[cfg(test)]
mod tests {
    use super::super::tests::spec;
    use super::*;
    use crate::plan::Slurm as Settings;

    fn asked(settings: Settings, vendor: Vendor) -> String {
        arguments(&spec(settings, vendor), Path::new("/bin/tprimat")).join(" ")
    }

    #[test]
    fn what_config_says_reaches_sbatch_and_nothing_else_does() {
        let plain = asked(Settings::default(), Vendor::Nvd);
        assert!(
            plain.contains("--no-requeue")
                && plain.contains("--gres=gpu:4")
                && !plain.contains("--account"),
            "{plain}"
        );
        let cpu = asked(Settings::default(), Vendor::Cpu);
        assert!(!cpu.contains("--gres"), "{cpu}");
        let stated = Settings {
            account: Some("lab".into()),
            partition: Some("h100".into()),
            gres: Some(String::new()),
            time: Some("04:00:00".into()),
            cpus: Some(96),
            exclusive: true,
            options: vec!["--mail-type=END".into(), "--job-name=mine".into()],
            ..Settings::default()
        };
        let stated = asked(stated, Vendor::Nvd);
        for part in [
            "--account=lab",
            "--partition=h100",
            "--time=04:00:00",
            "--cpus-per-task=96",
            "--exclusive",
            "--mail-type=END",
        ] {
            assert!(stated.contains(part), "{part}: {stated}");
        }
        assert!(!stated.contains("gres"), "{stated}");
        assert!(
            stated.ends_with(
                "--job-name=tprimat-r1 --no-requeue --wrap=exec /bin/tprimat __run /shared/runs/r1 job"
            ),
            "{stated}"
        );
    }
}
