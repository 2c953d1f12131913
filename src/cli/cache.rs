//! `cache`: what the cache holds, sharing it with a remote, and bundles.

use std::{collections::HashSet, fs::File, path::Path};

use serde::Serialize;
use serde_json::json;

use super::{
    args::{
        BundleArgs, CacheArgs, CacheCommand, CacheVerifyArgs, ExportArgs, GcArgs, Globals,
        PushArgs, RemoteArgs,
    },
    clean,
    output::{leave_out, print, print_json, say},
    remote::{self, bar, moves},
    session::Project,
};
use crate::{
    cache::{Cache, Expected, Limits, NamedObject, Repair, TaskKind, Verified, bundle_fault},
    digest::Digest,
    error::{Error, Problem, Result, exit},
    files::{self, Durability},
    import::Imports,
    remote::{Damaged, Pushed, Remote, Repaired},
    words::plain::counted,
};

pub fn run(globals: &Globals, args: &CacheArgs) -> Result<i32> {
    match &args.command {
        CacheCommand::Push(args) => push(globals, args),
        CacheCommand::Pull(args) => pull(globals, args),
        CacheCommand::Stat(args) => stat(globals, args),
        CacheCommand::Verify(CacheVerifyArgs {
            remote: None,
            repair,
        }) => verify(globals, *repair),
        CacheCommand::Verify(CacheVerifyArgs {
            remote: Some(address),
            ..
        }) => verify_remote(globals, address),
        CacheCommand::Gc(args) => gc(globals, args),
        CacheCommand::Export(args) => export(globals, args),
        CacheCommand::Import(args) => import(globals, args),
    }
}

/// The project's cache, and its remote where it has one.
fn open(globals: &Globals, args: &RemoteArgs) -> Result<(Cache, Option<Remote>)> {
    let sets = args.remote.iter().map(|a| remote::setting(a));
    let sets = sets.collect::<Result<Vec<_>>>()?;
    let project = Project::open_or_imports(globals, &sets)?;
    let remote = remote::of(&project.config)?;
    if let Some(doubt) = remote.as_ref().and_then(remote::doubt) {
        say(&format!("warning: {doubt}"));
    }
    Ok((project.cache()?, remote))
}

fn shared(globals: &Globals, args: &RemoteArgs) -> Result<(Cache, Remote)> {
    let (cache, remote) = open(globals, args)?;
    Ok((cache, remote.ok_or_else(remote::no_remote)?))
}

fn push(globals: &Globals, args: &PushArgs) -> Result<i32> {
    let (cache, remote) = shared(globals, &args.remote)?;
    let records = cache.shared_records()?;
    let bar = bar("pushing");
    let pushed = remote.list(None).map(|listing| {
        let shared = records.iter().filter(|r| listing.has(r)).count();
        let repaired = match args.repair {
            true => remote.repair(&cache, &records, &listing, &moves(&bar)),
            false => Repaired::default(),
        };
        remote.sweep();
        let pushed = match repaired.cut {
            None => remote.push(&cache, &records, &listing, &moves(&bar)),
            cut => Pushed {
                cut,
                ..Pushed::default()
            },
        };
        (pushed, repaired.names, shared)
    });
    bar.finish_and_clear();
    let (pushed, repaired, shared) = pushed?;
    let runs = counted(pushed.runs, "run");
    if let Some(cut) = pushed.cut {
        for name in repaired {
            say(&format!("note: was damaged, and replaced: {name}"));
        }
        say(&format!(
            "note: {runs} pushed to {} before it broke off",
            remote.address()
        ));
        return Err(cut);
    }
    if globals.json {
        print_json(
            "cache_push",
            &json!({ "remote": remote.address(), "runs": pushed.runs, "incomplete": pushed.incomplete, "repaired": repaired, "there_by_name": shared }),
        )?;
        return Ok(exit::OK);
    }
    for name in repaired {
        print(&format!("was damaged, and replaced: {name}\n"))?;
    }
    print(&format!("{runs} pushed to {}\n", remote.address()))?;
    if shared > 0 && !args.repair {
        say(&format!(
            "note: {} there already by name, and not read; `tprimat cache verify --remote` finds damage",
            match shared {
                1 => "1 record is".to_owned(),
                more => format!("{more} records are"),
            }
        ));
    }
    say_incomplete(pushed.incomplete);
    Ok(exit::OK)
}

fn say_incomplete(incomplete: usize) {
    if incomplete > 0 {
        say(&format!(
            "note: {} left out: the cache has lost a file of each; `tprimat cache verify` names them",
            counted(incomplete, "run")
        ));
    }
}

fn pull(globals: &Globals, args: &RemoteArgs) -> Result<i32> {
    let (cache, remote) = shared(globals, args)?;
    cache.ensure_writable()?;
    let _in_use = cache.use_it();
    let bar = bar("pulling");
    let pulled = remote
        .list(None)
        .and_then(|listing| remote.pull(&cache, &listing, &moves(&bar)));
    bar.finish_and_clear();
    let mut pulled = pulled?;
    if let Some(cut) = pulled.cut.take() {
        for told in remote::told(&remote, &pulled) {
            say(&format!("note: {told} before the pull broke off"));
        }
        if let Some(refused) = remote::refused(&remote, &pulled) {
            say(&format!("note: {refused}"));
        }
        return Err(cut);
    }
    if globals.json {
        print_json(
            "cache_pull",
            &json!({
                "remote": remote.address(), "runs": pulled.counts.runs, "objects": pulled.counts.objects,
                "refused": pulled.refused,
            }),
        )?;
    } else {
        let mut told = remote::told(&remote, &pulled);
        told.extend(remote::refused(&remote, &pulled));
        if told.is_empty() {
            print(&format!("{} has no other runs\n", remote.address()))?;
        }
        for told in told {
            print(&format!("{told}\n"))?;
        }
    }
    Ok(if pulled.refused.is_empty() {
        exit::OK
    } else {
        exit::FAILED
    })
}

fn stat(globals: &Globals, args: &RemoteArgs) -> Result<i32> {
    let (cache, remote) = open(globals, args)?;
    let usage = cache.usage()?;
    let there = remote
        .as_ref()
        .map(|remote| {
            let (listing, records) = (remote.list(None)?, cache.shared_records()?);
            let both = records.iter().filter(|r| listing.has(r)).count();
            Ok((listing.len() - both, records.len() - both, both))
        })
        .transpose();
    let there = match there {
        Err(error) if remote::is_unreachable(&error) => {
            say(&format!("note: {error}"));
            None
        }
        other => other?,
    };
    let address = remote.as_ref().map(Remote::address);
    if globals.json {
        let remote = address.map(|address| match there {
            Some((there, here, both)) => json!({
                "address": address, "reached": true,
                "only_there": there, "only_here": here, "both_by_name": both,
            }),
            None => json!({ "address": address, "reached": false }),
        });
        let value = json!({ "cache": cache.root(), "holds": usage, "remote": remote });
        print_json("cache_stat", &value)?;
        return Ok(exit::OK);
    }
    let mut lines = vec![
        ("cache", cache.root().display().to_string()),
        ("runs", usage.runs.to_string()),
        (
            "objects",
            format!("{}, {} on disk", usage.objects, amount(usage.bytes)),
        ),
        ("records", amount(usage.record_bytes)),
        (
            "drawn again",
            format!(
                "{} by the next build: {}; `tprimat cache gc --older-than 30d` removes old ones",
                counted(usage.drawn, "object"),
                amount(usage.drawn_bytes)
            ),
        ),
        (
            "named by none",
            format!(
                "{}, {}",
                counted(usage.unnamed, "object"),
                amount(usage.unnamed_bytes)
            ),
        ),
    ];
    if let (Some(address), Some((there, here, both))) = (address, there) {
        let records = |count| counted(count, "record");
        lines.push((
            "remote",
            format!(
                "{address}: {} only there, {} only here, {} on both sides by name; `tprimat cache verify --remote` reads them",
                records(there),
                records(here),
                records(both)
            ),
        ));
    }
    let lines: Vec<String> = lines
        .iter()
        .map(|(name, text)| format!("{name:<14} {text}\n"))
        .collect();
    print(&lines.concat())?;
    Ok(exit::OK)
}

fn amount(bytes: u64) -> String {
    const MIB: f64 = 1_048_576.0;
    match bytes as f64 / MIB {
        mib if mib >= 1024.0 => format!("{:.2} GiB", mib / 1024.0),
        mib => format!("{mib:.1} MiB"),
    }
}

/// The form `tprimat.cache_verify/1`.
#[derive(Serialize)]
struct Checked<'a> {
    #[serde(flatten)]
    verified: &'a Verified,
    /// None without `--repair`, and where it failed.
    repair: Option<&'a Repair>,
    repair_error: Option<String>,
}

fn verify(globals: &Globals, repair: bool) -> Result<i32> {
    let cache = Project::open_or_imports(globals, &[])?.cache()?;
    let _held = if repair {
        let alone = clean::unused(cache.root())?;
        cache.refresh()?;
        alone
    } else {
        cache.use_it()
    };
    let bar = bar("reading");
    let verified = cache.verify(&|done, all| {
        let _ = moves(&bar)(done, all);
    });
    bar.finish_and_clear();
    let verified = verified?;
    let is_sound = verified.damaged.is_empty()
        && verified.lost.is_empty()
        && verified.damaged_records.is_empty();
    // What was found is told also where the repair fails.
    let (done, failed) = match repair.then(|| cache.repair()).transpose() {
        Ok(done) => (done, None),
        Err(error) => (None, Some(error)),
    };
    if globals.json {
        let checked = Checked {
            verified: &verified,
            repair: done.as_ref(),
            repair_error: failed.as_ref().map(Error::to_string),
        };
        print_json("cache_verify", &checked)?;
    } else {
        let mut text = format!("{} read\n", counted(verified.objects, "object"));
        for digest in &verified.damaged {
            let files = verified.damaged_files.iter();
            let mut files = files.filter(|file| file.digest == *digest);
            let what = match (files.next(), files.count()) {
                (None, _) => "an object that no record names".to_owned(),
                (Some(file), 0) => format!("`{}` of {}", file.name, file.task),
                (Some(file), more) => {
                    let more = counted(more, "other file");
                    format!("`{}` of {} (and {more})", file.name, file.task)
                }
            };
            text += &format!("damaged: {what} ({})\n", digest.short());
        }
        for (task, name) in &verified.lost {
            text += &format!("lost: `{name}` of {task}\n");
        }
        for (task, name) in &verified.known_lost {
            text += &format!("noted as lost by an earlier --repair: `{name}` of {task}\n");
        }
        for damaged in &verified.damaged_records {
            text += &format!(
                "damaged records: {} at byte {} of {}\n",
                counted(damaged.bytes as usize, "byte"),
                damaged.offset,
                damaged.file
            );
        }
        print(&text)?;
        if !verified.damaged_records.is_empty() {
            say(
                "what was recorded there counts as never run: restore the file from a backup, or bring the runs back with \
                 `tprimat cache pull` or an import of another cache",
            );
        }
        let is_measured = |file: &NamedObject| file.task.starts_with(TaskKind::Train.name());
        if !verified.damaged_files.iter().all(is_measured) {
            say("what was read from logs or drawn is made again by the next build that needs it");
        }
        if !verified.lost.is_empty() || verified.damaged_files.iter().any(is_measured) {
            let first = match verified.damaged.is_empty() || repair {
                true => "",
                false => "once `--repair` has removed what is damaged, ",
            };
            say(&format!(
                "{first}`tprimat cache pull` or an import of another cache brings files of runs back where another has them"
            ));
        }
        if let Some(done) = &done {
            let measured = verified.damaged_files.iter().filter(|f| is_measured(f));
            let lost = verified.lost.len() + measured.count();
            if done.removed.len() + done.cut.len() + lost > 0 {
                say(&format!(
                    "{} removed, {} cut out, {} noted as lost; later checks pass over them",
                    counted(done.removed.len(), "damaged object"),
                    counted(done.cut.len(), "damaged place"),
                    counted(lost, "file")
                ));
            }
            if !done.left.is_empty() {
                say(
                    "no damaged record was cut out: another tprimat writes to a file that holds one, or its file system has no locks; \
                     repeat this when no other tprimat is running",
                );
            }
        } else if !repair && !is_sound {
            say(
                "`tprimat cache verify --repair` removes what is damaged and notes what is lost, so that later checks find only new \
                 damage",
            );
        }
    }
    if let Some(error) = failed {
        // With `--json` the one object that is printed has it.
        return if globals.json {
            Ok(error.exit_code())
        } else {
            Err(error)
        };
    }
    let is_sound = match done {
        Some(done) => done.left.is_empty(),
        None => is_sound,
    };
    Ok(if is_sound { exit::OK } else { exit::FAILED })
}

/// `address`: empty for the project's own remote.
fn verify_remote(globals: &Globals, address: &str) -> Result<i32> {
    let args = RemoteArgs {
        remote: (!address.is_empty()).then(|| address.to_owned()),
    };
    let (cache, remote) = shared(globals, &args)?;
    let bar = bar("reading");
    let read = remote
        .list(None)
        .map(|listing| (listing.len(), remote.verify(&listing, &moves(&bar))));
    bar.finish_and_clear();
    let (records, crate::remote::Verified { damaged, cut }) = read?;
    if let Some(cut) = cut {
        for one in &damaged {
            say(&format!("note: damaged: {}: {}", one.name, one.why));
        }
        say(&format!(
            "note: not all of {} was read before it broke off",
            remote.address()
        ));
        return Err(cut);
    }
    let own: HashSet<Digest> = cache
        .shared_records()?
        .iter()
        .filter(|record| cache.is_whole(record))
        .map(|record| record.digest)
        .collect();
    let is_here = |one: &Damaged| own.contains(&one.digest);
    let code = if damaged.is_empty() {
        exit::OK
    } else {
        exit::FAILED
    };
    if globals.json {
        let damaged: Vec<_> = damaged
            .iter()
            .map(|one| json!({ "name": one.name, "why": one.why, "whole_here": is_here(one) }))
            .collect();
        print_json(
            "cache_verify_remote",
            &json!({ "remote": remote.address(), "records": records, "damaged": damaged }),
        )?;
        return Ok(code);
    }
    print(&format!(
        "{} of {} read\n",
        counted(records, "record"),
        remote.address()
    ))?;
    for one in &damaged {
        print(&format!("damaged: {}: {}\n", one.name, one.why))?;
    }
    let here = damaged.iter().filter(|one| is_here(one)).count();
    if here > 0 {
        say(&format!(
            "`tprimat cache push --repair` replaces {here} of {}, which this cache has whole",
            damaged.len()
        ));
    }
    if here < damaged.len() {
        say(
            "a damaged run that this cache lacks can only come from a host that has it: run `tprimat cache push --repair` there, \
             or remove the file so that nobody reads it again",
        );
    }
    Ok(code)
}

fn gc(globals: &Globals, args: &GcArgs) -> Result<i32> {
    let cache = Project::open_or_imports(globals, &[])?.cache()?;
    let _alone = clean::unused(cache.root())?;
    cache.refresh()?;
    if cache.has_damaged_records()? {
        return Err(Error::Failed {
            message: "some of the cache's records cannot be read, and the logs that they name would be removed as nobody's; nothing was removed"
                .into(),
            help: Some(
                "`tprimat cache verify` says where they are: bring that file back from a backup, or give these records up with \
                 `tprimat cache verify --repair`"
                    .into(),
            ),
        });
    }
    let garbage = cache.garbage(Limits {
        older_than: args.older_than,
        at_most_bytes: args.at_most,
    })?;
    if !args.dry_run {
        cache.remove(&garbage)?;
    }
    let bytes: u64 = garbage.iter().map(|object| object.bytes).sum();
    let unnamed = garbage.iter().filter(|object| !object.is_named).count();
    let drawn = garbage.len() - unnamed;
    if globals.json {
        print_json(
            "cache_gc",
            &json!({ "dry_run": args.dry_run, "drawn": drawn, "unnamed": unnamed, "bytes": bytes }),
        )?;
        return Ok(exit::OK);
    }
    let removed = if args.dry_run {
        "would be removed"
    } else {
        "removed"
    };
    print(&format!(
        "{} {removed}, {}: {drawn} that a build draws again, {unnamed} that no record names\n",
        counted(garbage.len(), "object"),
        amount(bytes)
    ))?;
    Ok(exit::OK)
}

fn export(globals: &Globals, args: &ExportArgs) -> Result<i32> {
    let cache = Project::open_or_imports(globals, &[])?.cache()?;
    if args.file.symlink_metadata().is_ok() {
        let problem = Problem::new(format!("{} is there already", args.file.display()));
        return Err(Error::invalid(
            problem.help("name a new file, or remove it"),
        ));
    }
    let mut staged = files::Staged::create(&args.file)?;
    let counts = cache.export(&Imports::key(), &mut staged)?;
    staged.commit(Durability::Plain)?;
    // A backup that lacks runs must not pass for a whole one.
    let lacks_runs = counts.incomplete > counts.given_up;
    let code = if lacks_runs || counts.lost_of_imports > 0 {
        exit::FAILED
    } else {
        exit::OK
    };
    if globals.json {
        print_json(
            "cache_export",
            &json!({ "file": args.file, "runs": counts.runs, "objects": counts.objects, "incomplete": counts.incomplete, "given_up": counts.given_up, "lost_of_imports": counts.lost_of_imports }),
        )?;
        return Ok(code);
    }
    print(&format!(
        "{}: {} with {}; `tprimat cache import` takes it in\n",
        args.file.display(),
        counted(counts.runs, "run"),
        counted(counts.objects, "file")
    ))?;
    say_incomplete(counts.incomplete);
    if counts.lost_of_imports > 0 {
        say(&format!(
            "note: {} of imports left out: the cache has lost them; `tprimat import` of the same files brings them back",
            counted(counts.lost_of_imports, "file")
        ));
    }
    if lacks_runs {
        say(
            "`tprimat cache pull` brings them back where another cache has them; `tprimat cache verify --repair` gives them up",
        );
    }
    Ok(code)
}

fn import(globals: &Globals, args: &BundleArgs) -> Result<i32> {
    let cache = Project::open_or_imports(globals, &[])?.cache()?;
    cache.ensure_writable()?;
    let _in_use = cache.use_it();
    let file = regular(&args.file)?;
    let list = Imports::key();
    let received = cache.receive(file, Expected::Any { list });
    let mut received = received.map_err(|error| of_file(error, &args.file))?;
    let imports = received.take_list(&list);
    let counts = cache.admit([received])?;
    let imports = Imports::take_in(&cache, imports, leave_out)?;
    if globals.json {
        print_json(
            "cache_import",
            &json!({ "file": args.file, "runs": counts.runs, "imports": imports, "objects": counts.objects }),
        )?;
        return Ok(exit::OK);
    }
    print(&format!(
        "{}: {} and {} are new here\n",
        args.file.display(),
        counted(counts.runs, "run"),
        counted(imports, "import")
    ))?;
    say("`tprimat plan` shows which cells they measure; `tprimat compare` compares them");
    Ok(exit::OK)
}

/// Names the file that is not a bundle.
fn of_file(error: Error, file: &Path) -> Error {
    match bundle_fault(error) {
        Ok(why) => {
            let problem = Problem::new(format!("{}: the bundle {why}", file.display()));
            let help = "expected a file that `tprimat cache export` wrote; nothing was taken in";
            Error::invalid(problem.help(help))
        }
        Err(other) => other,
    }
}

fn regular(path: &Path) -> Result<File> {
    let opened = files::open_regular(path).map_err(Error::io("cannot read", path))?;
    Ok(opened.0)
}
