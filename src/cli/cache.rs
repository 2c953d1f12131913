//! `cache`: what the cache holds, and sharing it with a remote or by a file.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::{
    args::{CacheCommand, GcArgs, Globals, RemoteArgs},
    clean,
    output::{answer, print, print_json, say},
    remote::{self, bar, moves},
    session::Project,
    set_aside,
};
use crate::{
    cache::{
        Cache, Damaged, Limits, Listing, NamedObject, Pulled, Pushed, Remote, Repaired, TaskKind,
        Verified, is_decision,
    },
    error::{Error, Result, exit},
    files::{self, Durability},
    words::plain::counted,
};

pub fn run(globals: &Globals, command: &CacheCommand) -> Result<i32> {
    match command {
        CacheCommand::Push { remote, repair } => push(globals, remote, *repair),
        CacheCommand::Pull(args) => pull(globals, args),
        CacheCommand::Stat(args) => stat(globals, args),
        CacheCommand::Verify { remote: None } => verify(globals),
        CacheCommand::Verify {
            remote: Some(address),
        } => verify_remote(globals, address),
        CacheCommand::Gc(args) => gc(globals, args),
        CacheCommand::Export { file } => export(globals, file),
        CacheCommand::Import { file } => import(globals, file),
        CacheCommand::SetAside { id, common, reason } => {
            set_aside::set_aside(globals, common, id, reason)
        }
        CacheCommand::Restore { id, common } => set_aside::restore(globals, common, id),
        CacheCommand::Clean { all, yes } => clean::run(globals, *all, *yes),
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

fn push(globals: &Globals, args: &RemoteArgs, repair: bool) -> Result<i32> {
    let (cache, remote) = shared(globals, args)?;
    let bar = bar("pushing");
    let listing = remote.list(None)?;
    let records = cache.shared_records(None);
    let mut repaired = Repaired::default();
    if repair {
        let own: Listing = records.iter().cloned().collect();
        let both = listing.intersection(&own).cloned().collect();
        repaired = remote.verify(&both, Some(&cache), &moves(&bar));
    }
    remote.sweep();
    let pushed = match repaired.cut {
        None => remote.push(&cache, &records, &listing, &moves(&bar)),
        cut => Pushed {
            cut,
            ..Pushed::default()
        },
    };
    bar.finish_and_clear();
    let repaired = repaired.damaged.iter().map(|one| one.record.name());
    let repaired: Vec<String> = repaired.collect();
    let shared = records.iter().filter(|r| listing.contains(r)).count();
    let told = remote::counts(&pushed.counts);
    if !globals.json || pushed.cut.is_some() {
        for name in &repaired {
            say(&format!("note: was damaged, and replaced: {name}"));
        }
    }
    let address = remote.address();
    if let Some(cut) = pushed.cut {
        say(&format!(
            "note: {told} pushed to {address} before it broke off"
        ));
        return Err(cut);
    }
    let counts = &pushed.counts;
    let value = json!({
        "remote": address, "runs": counts.runs, "imports": counts.imports, "decisions": counts.decisions,
        "incomplete": pushed.incomplete, "repaired": repaired, "there_by_name": shared,
    });
    answer(globals, "cache_push", &value, || {
        format!("{told} pushed to {address}\n")
    })?;
    if shared > 0 && !repair && !globals.json {
        let are = if shared == 1 { "is" } else { "are" };
        say(&format!(
            "note: {} {are} there already by name, and not read; `tprimat cache verify --remote` finds damage",
            counted(shared, "record")
        ));
    }
    Ok(code_of(globals, pushed.incomplete))
}

/// Says how many records were left out, and how the command ends.
fn code_of(globals: &Globals, incomplete: usize) -> i32 {
    if incomplete == 0 {
        return exit::OK;
    }
    if !globals.json {
        say(&format!(
            "note: {} left out: damaged here, or a file of the run is lost; `tprimat cache verify` names them",
            counted(incomplete, "record")
        ));
    }
    exit::FAILED
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
    let mut told = remote::told(&remote, &pulled);
    told.extend(remote::refused(&remote, &pulled));
    if let Some(cut) = pulled.cut.take() {
        told.iter().for_each(|told| say(&format!("note: {told}")));
        say("note: the pull broke off after that");
        return Err(cut);
    }
    let value = pulled_json("remote", remote.address(), &pulled);
    answer(globals, "cache_pull", &value, || match told.is_empty() {
        true => format!("{} has no other runs\n", remote.address()),
        false => told.join("\n") + "\n",
    })?;
    Ok(code_when(pulled.refused.is_empty()))
}

fn code_when(is_well: bool) -> i32 {
    if is_well { exit::OK } else { exit::FAILED }
}

fn pulled_json(what: &str, from: &str, pulled: &Pulled) -> serde_json::Value {
    json!({
        what: from, "runs": pulled.counts.runs, "imports": pulled.counts.imports,
        "decisions": pulled.counts.decisions, "objects": pulled.objects, "refused": pulled.refused,
    })
}

fn stat(globals: &Globals, args: &RemoteArgs) -> Result<i32> {
    let (cache, remote) = open(globals, args)?;
    let usage = cache.usage()?;
    let there = remote.as_ref().map(|remote| {
        let (listing, records) = (remote.list(None)?, cache.shared_records(None));
        let both = records.iter().filter(|r| listing.contains(r)).count();
        Ok((listing.len() - both, records.len() - both, both))
    });
    let there = match there.transpose() {
        Err(error) if remote::is_unreachable(&error) => {
            say(&format!("note: {error}"));
            None
        }
        other => other?,
    };
    let address = remote.as_ref().map(Remote::address);
    let of_remote = address.map(|address| match there {
        Some((there, here, both)) => json!({
            "address": address, "reached": true,
            "only_there": there, "only_here": here, "both_by_name": both,
        }),
        None => json!({ "address": address, "reached": false }),
    });
    let objects = |count, bytes| format!("{}, {}", counted(count, "object"), amount(bytes));
    let mut lines = vec![
        ("cache", cache.root().display().to_string()),
        ("runs", usage.runs.to_string()),
        (
            "files",
            format!("{} on disk", objects(usage.objects, usage.bytes)),
        ),
        (
            "drawn again",
            format!(
                "{} by the next build; `tprimat cache gc --older-than 30d` removes old ones",
                objects(usage.drawn, usage.drawn_bytes)
            ),
        ),
        ("named by none", objects(usage.unnamed, usage.unnamed_bytes)),
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
    let value = json!({ "cache": cache.root(), "holds": usage, "remote": of_remote });
    answer(globals, "cache_stat", &value, || {
        let lines = lines.iter();
        let lines = lines.map(|(name, text)| format!("{name:<14} {text}\n"));
        lines.collect()
    })?;
    Ok(exit::OK)
}

fn amount(bytes: u64) -> String {
    const MIB: f64 = 1_048_576.0;
    match bytes as f64 / MIB {
        mib if mib >= 1024.0 => format!("{:.2} GiB", mib / 1024.0),
        mib => format!("{mib:.1} MiB"),
    }
}

fn verify(globals: &Globals) -> Result<i32> {
    let cache = Project::open_or_imports(globals, &[])?.cache()?;
    let _held = cache.use_it();
    let bar = bar("reading");
    let verified = cache.verify(&|done, all| {
        let _ = moves(&bar)(done, all);
    });
    bar.finish_and_clear();
    let verified = verified?;
    if globals.json {
        print_json("cache_verify", &verified)?;
    } else {
        print(&found(&cache, &verified))?;
        advice(&verified).into_iter().for_each(say);
    }
    Ok(code_when(verified.is_sound()))
}

/// What is not sound, a line each, with the file that it is.
fn found(cache: &Cache, verified: &Verified) -> String {
    let mut text = format!(
        "{} and {} read\n",
        counted(verified.records, "record"),
        counted(verified.objects, "file")
    );
    for digest in &verified.damaged {
        let files = verified.damaged_files.iter();
        let mut files = files.filter(|file| file.digest == *digest);
        let what = match (files.next(), files.count()) {
            (None, _) => "a file that no record names".to_owned(),
            (Some(file), 0) => format!("`{}` of {}", file.name, file.task),
            (Some(file), more) => {
                let more = counted(more, "other file");
                format!("`{}` of {} (and {more})", file.name, file.task)
            }
        };
        let place = cache.place_of(digest).display().to_string();
        text += &format!("damaged: {what}: {place}\n");
    }
    for (task, name) in &verified.lost {
        text += &format!("lost: `{name}` of {task}\n");
    }
    for path in &verified.damaged_records {
        text += &format!("damaged: {}\n", path.display());
    }
    for (path, why) in &verified.unread {
        text += &format!("cannot be read: {}: {why}\n", path.display());
    }
    text
}

fn advice(verified: &Verified) -> Vec<&'static str> {
    let is_measured = |file: &NamedObject| {
        let of = file.task.split(' ').next();
        [Some(TaskKind::Train.name()), Some("import")].contains(&of)
    };
    let mut advice = Vec::new();
    let of_runs = verified.damaged_files.iter().any(is_measured);
    if of_runs || !verified.lost.is_empty() || !verified.damaged_records.is_empty() {
        advice.push(
            "what was measured comes back from a backup, or by `tprimat cache pull` from another cache that has it, which replaces what is \
             damaged",
        );
    }
    let is_record = |path: &PathBuf| path.extension().is_some() && !is_decision(path);
    if verified.damaged_records.iter().any(is_record) {
        advice.push(
            "a run whose record is damaged counts as never made; to remove the record gives it up for good",
        );
    }
    if verified
        .damaged_records
        .iter()
        .any(|path| is_decision(path))
    {
        advice.push(
            "a damaged decision still holds and has lost its reason; to remove it takes it back",
        );
    }
    if !verified.damaged_files.iter().all(is_measured) {
        advice
            .push("what was read from logs or drawn is made again by the next build that needs it");
    }
    advice
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
        .map(|listing| (listing.len(), remote.verify(&listing, None, &moves(&bar))));
    bar.finish_and_clear();
    let (records, Repaired { damaged, cut }) = read?;
    if let Some(cut) = cut {
        for one in &damaged {
            say(&format!(
                "note: damaged: {}: {}",
                one.record.name(),
                one.why
            ));
        }
        say(&format!(
            "note: not all of {} was read before it broke off",
            remote.address()
        ));
        return Err(cut);
    }
    let is_here = |one: &&Damaged| cache.is_whole(&one.record);
    let row = |one: &Damaged| json!({ "name": one.record.name(), "why": one.why, "whole_here": is_here(&one) });
    let rows: Vec<_> = damaged.iter().map(row).collect();
    let value = json!({ "remote": remote.address(), "records": records, "damaged": rows });
    answer(globals, "cache_verify_remote", &value, || {
        let read = counted(records, "record");
        let lines = damaged.iter();
        let lines = lines.map(|one| format!("damaged: {}: {}\n", one.record.name(), one.why));
        format!("{read} of {} read\n", remote.address()) + &lines.collect::<String>()
    })?;
    let here = damaged.iter().filter(is_here).count();
    if here > 0 && !globals.json {
        say(&format!(
            "`tprimat cache push --repair` replaces {here} of {}, which this cache has whole",
            damaged.len()
        ));
    }
    if here < damaged.len() && !globals.json {
        say(
            "a damaged run that this cache lacks can only come from a host that has it: run `tprimat cache push --repair` there, \
             or remove the file so that nobody reads it again",
        );
    }
    Ok(code_when(damaged.is_empty()))
}

fn gc(globals: &Globals, args: &GcArgs) -> Result<i32> {
    let cache = Project::open_or_imports(globals, &[])?.cache()?;
    let _alone = clean::unused(cache.root())?;
    let garbage = cache.garbage(Limits {
        older_than: args.older_than,
        at_most_bytes: None,
    })?;
    if !args.dry_run {
        cache.remove(&garbage)?;
    }
    let bytes: u64 = garbage.iter().map(|object| object.bytes).sum();
    let unnamed = garbage.iter().filter(|object| !object.is_named).count();
    let drawn = garbage.len() - unnamed;
    let removed = if args.dry_run {
        "would be removed"
    } else {
        "removed"
    };
    let value =
        json!({ "dry_run": args.dry_run, "drawn": drawn, "unnamed": unnamed, "bytes": bytes });
    answer(globals, "cache_gc", &value, || {
        let (objects, bytes) = (counted(garbage.len(), "object"), amount(bytes));
        format!(
            "{objects} {removed}, {bytes}: {drawn} that a build draws again, {unnamed} that no record names\n"
        )
    })?;
    Ok(exit::OK)
}

fn export(globals: &Globals, file: &Path) -> Result<i32> {
    let cache = Project::open_or_imports(globals, &[])?.cache()?;
    if file.symlink_metadata().is_ok() {
        return Err(Error::refused(
            format!("{} is there already", file.display()),
            "name a new file, or remove it",
        ));
    }
    let mut staged = files::Staged::create(file)?;
    let exported = cache.export(&mut staged)?;
    staged.commit(Durability::Synced)?;
    let counts = &exported.counts;
    let value = json!({
        "file": file, "runs": counts.runs, "imports": counts.imports, "decisions": counts.decisions,
        "incomplete": exported.incomplete,
    });
    answer(globals, "cache_export", &value, || {
        let counts = remote::counts(counts);
        format!(
            "{}: {counts}; `tprimat cache import` takes it in\n",
            file.display()
        )
    })?;
    // A backup that lacks runs must not pass for a whole one.
    Ok(code_of(globals, exported.incomplete))
}

fn import(globals: &Globals, path: &Path) -> Result<i32> {
    let cache = Project::open_or_imports(globals, &[])?.cache()?;
    cache.ensure_writable()?;
    let _in_use = cache.use_it();
    let (file, _) = files::open_regular(path).map_err(Error::io("cannot read", path))?;
    let mut pulled = cache.import(file, path)?;
    for refused in &pulled.refused {
        say(&format!(
            "note: {}: not taken in: {refused}",
            path.display()
        ));
    }
    if let Some(cut) = pulled.cut.take() {
        let told = remote::counts(&pulled.counts);
        say(&format!("note: {told} taken in before it broke off"));
        return Err(cut);
    }
    let value = pulled_json("file", &path.to_string_lossy(), &pulled);
    answer(globals, "cache_import", &value, || {
        let counts = remote::counts(&pulled.counts);
        format!("{}: new here: {counts}\n", path.display())
    })?;
    if !globals.json {
        say("`tprimat plan` shows which cells they measure; `tprimat compare` compares them");
    }
    Ok(code_when(pulled.refused.is_empty()))
}
