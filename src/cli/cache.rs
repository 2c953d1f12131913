//! `cache`: what the cache holds, and sharing it with a remote or by a file.

use std::path::Path;

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
    cache::{Cache, Damaged, Listing, Pulled, Remote, Verified},
    error::{Error, Result, exit},
    files::{self, Durability},
    words::plain::counted,
};

pub fn run(globals: &Globals, command: &CacheCommand) -> Result<i32> {
    match command {
        CacheCommand::Push { remote, repair } => push(globals, remote, *repair),
        CacheCommand::Pull(args) => pull(globals, args),
        CacheCommand::Stat => stat(globals),
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
    let mut replaced = Vec::new();
    if repair {
        let own: Listing = records.iter().cloned().collect();
        let both = listing.intersection(&own).cloned().collect();
        replaced = remote.verify(&both, Some(&cache), &moves(&bar))?;
    }
    remote.sweep();
    let pushed = remote.push(&cache, &records, &listing, &moves(&bar));
    bar.finish_and_clear();
    let (address, told) = (remote.address(), remote::counts(&pushed.counts));
    if let Some(cut) = pushed.cut {
        say(&format!(
            "note: {told} pushed to {address} before it broke off"
        ));
        return Err(cut);
    }
    let replaced: Vec<String> = replaced.iter().map(|one| one.record.name()).collect();
    let counts = &pushed.counts;
    let value = json!({
        "remote": address, "runs": counts.runs, "imports": counts.imports, "decisions": counts.decisions,
        "incomplete": pushed.incomplete, "repaired": replaced,
    });
    answer(globals, "cache_push", &value, || {
        let replaced = replaced.iter();
        let replaced = replaced.map(|name| format!("was damaged, and replaced: {name}\n"));
        replaced.collect::<String>() + &format!("{told} pushed to {address}\n")
    })?;
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
    let counts = &pulled.counts;
    json!({
        what: from, "runs": counts.runs, "imports": counts.imports, "decisions": counts.decisions,
        "objects": pulled.objects, "refused": pulled.refused,
    })
}

fn stat(globals: &Globals) -> Result<i32> {
    let cache = Project::open_or_imports(globals, &[])?.cache()?;
    let usage = cache.usage()?;
    let objects = |count, bytes| format!("{}, {}", counted(count, "object"), amount(bytes));
    let lines = [
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
    let value = json!({ "cache": cache.root(), "holds": usage });
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
        if !verified.is_sound() {
            say(ADVICE);
        }
    }
    Ok(code_when(verified.is_sound()))
}

const ADVICE: &str = "what was measured comes back from a backup, or by `tprimat cache pull` from another cache that has it; a run whose \
                      record is damaged counts as never made, and a damaged decision (mark-…, generation-…) still holds; all else is made \
                      again by the next build that needs it";

/// What is not sound, a line each, with the file that it is.
fn found(cache: &Cache, verified: &Verified) -> String {
    let mut text = format!(
        "{} and {} read\n",
        counted(verified.records, "record"),
        counted(verified.objects, "file")
    );
    for digest in &verified.damaged {
        let files = verified.damaged_files.iter();
        let files = files.filter(|file| file.digest == *digest);
        let files: Vec<String> = files
            .map(|file| format!("`{}` of {}", file.name, file.task))
            .collect();
        let what = match files.is_empty() {
            true => "a file that no record names".to_owned(),
            false => files.join(", "),
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

/// `address`: empty for the project's own remote.
fn verify_remote(globals: &Globals, address: &str) -> Result<i32> {
    let args = RemoteArgs {
        remote: (!address.is_empty()).then(|| address.to_owned()),
    };
    let (_, remote) = shared(globals, &args)?;
    let bar = bar("reading");
    let listing = remote.list(None)?;
    let damaged = remote.verify(&listing, None, &moves(&bar))?;
    bar.finish_and_clear();
    let row = |one: &Damaged| json!({ "name": one.record.name(), "why": one.why });
    let rows: Vec<_> = damaged.iter().map(row).collect();
    let value = json!({ "remote": remote.address(), "records": listing.len(), "damaged": rows });
    answer(globals, "cache_verify_remote", &value, || {
        let read = counted(listing.len(), "record");
        let lines = damaged.iter();
        let lines = lines.map(|one| format!("damaged: {}: {}\n", one.record.name(), one.why));
        format!("{read} of {} read\n", remote.address()) + &lines.collect::<String>()
    })?;
    if !damaged.is_empty() && !globals.json {
        say(
            "`tprimat cache push --repair` replaces what is damaged there, on a host whose cache has it whole; elsewhere remove the file, \
             so that nobody reads it again",
        );
    }
    Ok(code_when(damaged.is_empty()))
}

fn gc(globals: &Globals, args: &GcArgs) -> Result<i32> {
    let cache = Project::open_or_imports(globals, &[])?.cache()?;
    let _alone = clean::unused(cache.root())?;
    let garbage = cache.garbage(args.older_than)?;
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
