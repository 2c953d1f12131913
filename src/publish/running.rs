//! The page of a build that goes on: it says so, and a browser loads it again every few seconds.
//! Both marks go when the build is over. The published page is kept meanwhile, and is back where the
//! build publishes none: pictures and tables beside it are of the same figures.

use std::{collections::BTreeMap, path::Path};

use super::{MANIFEST, alone_in, has_figures, read_manifest, write_manifest};
use crate::{
    cache::Cache,
    digest::Digest,
    error::Result,
    files::{self, Durability, write_atomically},
    report::PAGE,
};

/// The published page while that of a build stands in its place.
const KEPT: &str = ".report-before.html";
/// In the head of the page.
const REFRESH: &str = "<meta http-equiv=\"refresh\" content=\"10\">\n";
/// Around the sentence on the build, above the page's own header.
const TAGS: [&str; 2] = ["<p role=\"status\">A build goes on: ", "</p>\n"];

/// A page of what is measured so far.
pub struct RunningPage<'a> {
    pub matrix: &'a str,
    pub html: &'a str,
    pub has_figures: bool,
    /// How far the build is, and when that was.
    pub how_far: &'a str,
}

/// Writes the page of a build that goes on. A page without figures replaces none that has some: that
/// one is only marked.
pub fn write_running_page(folder: &Path, page: &RunningPage, cache: &Cache) -> Result<()> {
    let has_some = has_figures(folder, page.matrix);
    let keeps = !page.has_figures && has_some;
    replace(folder, page.matrix, cache, |there, published| {
        let own = there.filter(|text| has_some && unmarked(text).is_none());
        if let Some(own) = own {
            write_atomically(&folder.join(KEPT), own.as_bytes(), Durability::Plain)?;
            published.insert(KEPT.to_owned(), Digest::of(own));
        }
        let base = there.filter(|_| keeps).unwrap_or(page.html);
        let own = unmarked(base);
        Ok(Some(marked(own.as_deref().unwrap_or(base), page.how_far)))
    })
}

/// Takes the marks off the page, whatever the build came to.
pub fn end_running_page(folder: &Path, matrix: &str, cache: &Cache) -> Result<()> {
    match is_running_page(&folder.join(PAGE)) {
        true => replace(folder, matrix, cache, |there, published| {
            Ok(kept(folder, published).or_else(|| there.and_then(unmarked)))
        }),
        false => Ok(()),
    }
}

/// Puts the published page back before anything is said on it.
pub(super) fn restore(folder: &Path, published: &mut BTreeMap<String, Digest>) -> Result<()> {
    let path = folder.join(PAGE);
    if let Some(page) = kept(folder, published).filter(|_| is_running_page(&path)) {
        write_atomically(&path, page.as_bytes(), Durability::Plain)?;
        published.insert(PAGE.to_owned(), Digest::of(page));
    }
    Ok(())
}

/// Takes the published page from where it is kept.
fn kept(folder: &Path, published: &mut BTreeMap<String, Digest>) -> Option<String> {
    let digest = published.remove(KEPT)?;
    let path = folder.join(KEPT);
    let page = text_of(&path).filter(|text| Digest::of(text) == digest);
    let _ = std::fs::remove_file(path);
    page
}

/// Is it the page of a build that goes on, or that was killed?
pub(super) fn is_running_page(path: &Path) -> bool {
    path.ends_with(PAGE) && text_of(path).is_some_and(|text| unmarked(&text).is_some())
}

/// Replaces the page and lists it as published. One that somebody edited stays.
fn replace(
    folder: &Path,
    matrix: &str,
    cache: &Cache,
    with: impl FnOnce(Option<&str>, &mut BTreeMap<String, Digest>) -> Result<Option<String>>,
) -> Result<()> {
    let _alone = cache.lock_key(&Digest::of("publish"))?;
    files::create_dir_all(folder)?;
    let _alone_here = alone_in(folder);
    let (path, list) = (folder.join(PAGE), folder.join(MANIFEST));
    let mut manifest = read_manifest(&list);
    let published = manifest.entry(matrix.to_owned()).or_default();
    let there = text_of(&path);
    let is_ours = match &there {
        Some(text) => published.get(PAGE) == Some(&Digest::of(text)) || unmarked(text).is_some(),
        None => std::fs::symlink_metadata(&path).is_err(),
    };
    if !is_ours {
        return Ok(());
    }
    let Some(text) = with(there.as_deref(), published)? else {
        return Ok(());
    };
    write_atomically(&path, text.as_bytes(), Durability::Plain)?;
    published.insert(PAGE.to_owned(), Digest::of(text));
    write_manifest(&list, &manifest)
}

/// The text of a file that is no link, which may lead anywhere.
fn text_of(path: &Path) -> Option<String> {
    let is_file = std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    std::fs::read_to_string(path).ok().filter(|_| is_file)
}

fn marked(page: &str, how_far: &str) -> String {
    let [open, close] = TAGS;
    page.replacen("<head>\n", &format!("<head>\n{REFRESH}"), 1)
        .replacen(
            "<header>\n",
            &format!("{open}{how_far}{close}<header>\n"),
            1,
        )
}

/// The page without its marks, if it has them.
fn unmarked(page: &str) -> Option<String> {
    let (head, rest) = page.split_once(REFRESH)?;
    let (above, rest) = rest.split_once(TAGS[0])?;
    let (_, below) = rest.split_once(TAGS[1])?;
    Some(format!("{head}{above}{below}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{figures, report};

    #[test]
    fn the_page_is_marked_while_a_build_goes_on_and_is_as_it_was_afterwards() {
        let none = figures::compare(&[], &Default::default(), &Default::default());
        let own = report::html(&none, &[], &report::Meta::default()).unwrap();
        let page = marked(&own, "1 of 2 runs over");
        assert!(page.contains("http-equiv=\"refresh\"") && page.contains("1 of 2 runs over"));
        assert_eq!(unmarked(&page), Some(own.clone()));
        assert_eq!(unmarked(&own), None);
    }
}
