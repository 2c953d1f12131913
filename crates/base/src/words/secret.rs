//! Secrets, known by their names and by where they stand: a password is left out of keys, logs and
//! everything that people read.

use std::{borrow::Cow, ops::Range};

/// Parts of names, between underscores, that make a secret of a variable: `WANDB_KEY`, but not
/// `MONKEY`.
const SECRET_PARTS: [&str; 6] = ["KEY", "PASS", "PASSPHRASE", "SSHPASS", "PWD", "AUTH"];
/// What is in no harmless name, with or without an underscore before it: `PGPASSWORD`.
const SECRET_WORDS: [&str; 5] = ["PASSWORD", "PASSWD", "SECRET", "CREDENTIAL", "APIKEY"];

/// Those of them that settings have as well: `NUM_PASS=3`, `USE_AUTH=true`.
const WEAK_PARTS: [&str; 2] = ["PASS", "AUTH"];

/// Is this the name of something that nobody may read?
#[must_use]
pub fn is_secret(name: &str) -> bool {
    has_secret_part(name, |_| true)
}

fn has_secret_part(name: &str, counts: impl Fn(&str) -> bool) -> bool {
    let name = name.to_uppercase();
    // The shell's own: the folder that it is in.
    if name == "PWD" {
        return false;
    }
    let is_part = |part: &str| part.ends_with("TOKEN") || SECRET_PARTS.contains(&part);
    SECRET_WORDS.iter().any(|word| name.contains(word))
        || name
            .split(|c: char| !c.is_ascii_alphanumeric())
            .any(|part| is_part(part) && counts(part))
}

/// The user and password of every address in a text: `user:password` of
/// `http://user:password@host`, and a name so long that it is a key
/// (`https://0123456789abcdef@host`).
#[must_use]
pub fn passwords_in(text: &str) -> Vec<Range<usize>> {
    /// No user has a longer name.
    const LONG_NAME: usize = 16;
    let mut found = Vec::new();
    for (at, separator) in text.match_indices("://") {
        let start = at + separator.len();
        let mut parts = text
            .get(start..)
            .unwrap_or_default()
            .split(|c: char| c.is_whitespace() || "/?#\"'".contains(c));
        if let Some((user, _)) = parts.next().and_then(|host| host.rsplit_once('@'))
            && (user.contains(':') || user.len() >= LONG_NAME)
        {
            found.push(start..start + user.len());
        }
    }
    found
}

/// Is this a setting, although its name has a part that secrets have: `NUM_PASS=3`,
/// `USE_AUTH=true`? Left out of a key, its old measurement would stand for the new value. A
/// password may be a number, so a name that says more is always a secret's, and no number is plain
/// that is long enough to be a PIN.
fn is_plain_setting(name: &str, value: &str) -> bool {
    const LONGEST_NUMBER: usize = 3;
    let is_number = value.len() <= LONGEST_NUMBER && value.bytes().all(|b| b.is_ascii_digit());
    !has_secret_part(name, |part| !WEAK_PARTS.contains(&part))
        && (is_number || ["true", "false", "on", "off"].contains(&value))
}

/// Stands for a value that nobody may read.
pub const SECRET: &str = "(secret)";

/// What keys and people may know of a declared variable's value.
#[must_use]
pub fn public_value<'v>(name: &str, value: &'v str) -> Cow<'v, str> {
    if is_secret(name) && !is_plain_setting(name, value) {
        return Cow::Borrowed(SECRET);
    }
    let mut public = Cow::Borrowed(value);
    for password in passwords_in(value).into_iter().rev() {
        public.to_mut().replace_range(password, SECRET);
    }
    public
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_addresses_are_found_and_nothing_else() {
        let public = |value: &str| public_value("URL", value).into_owned();
        for (value, shown) in [
            ("http://u:pw@proxy:3128", "http://(secret)@proxy:3128"),
            ("postgres://u:p@ss@db/x?y=1", "postgres://(secret)@db/x?y=1"),
            (
                "a=http://u:1@h b=http://v:2@i",
                "a=http://(secret)@h b=http://(secret)@i",
            ),
            (
                "https://0123456789abcdef0123@sentry.io/1",
                "https://(secret)@sentry.io/1",
            ),
            ("ssh://git@host/x", "ssh://git@host/x"),
            ("http://host/a@b:c", "http://host/a@b:c"),
            ("http://host:80", "http://host:80"),
            ("ü://ü:ü@ü", "ü://(secret)@ü"),
        ] {
            assert_eq!(public(value), shown);
        }
        assert_eq!(public_value("WANDB_API_KEY", "abc"), "(secret)");
    }

    #[test]
    fn a_number_under_the_name_of_a_secret_is_a_secret() {
        for (name, value) in [
            ("DB_PASSWORD", "1234"),
            ("PGPASSWORD", "1"),
            ("HF_TOKEN", "123"),
            ("SORT_KEY", "3"),
            ("CLIENT_SECRET", "true"),
            ("PASS_KEY", "3"),
            ("DB_PASS", "1234"),
            ("DB_PASS", "nan"),
            ("DB_PASS", "1e5"),
            ("USE_AUTH", "abc"),
        ] {
            assert_eq!(public_value(name, value), SECRET, "{name}={value}");
        }
        for (name, value) in [
            ("NUM_PASS", "3"),
            ("USE_AUTH", "true"),
            ("USE_AUTH", "0"),
            ("NUM_PASS", ""),
        ] {
            assert_eq!(public_value(name, value), value, "{name}={value}");
        }
    }

    #[test]
    fn secrets_are_known_by_their_names() {
        for name in [
            "my_password",
            "HF_TOKEN",
            "TOKEN",
            "github_token",
            "HFTOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "WANDB_KEY",
            "OPENAI_APIKEY",
            "MYSQL_PWD",
            "PROXY_PASS",
            "DB_PASSWD",
            "PGPASSWORD",
            "REGISTRY_AUTH",
            "GOOGLE_APPLICATION_CREDENTIALS",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "TOKENIZERS_PARALLELISM",
            "TOTAL_TOKENS",
            "MONKEY",
            "KEYBOARD",
            "PWD",
            "OLDPWD",
            "BYPASS",
            "AUTHOR",
            "MAX_TOKENS_PER_GPU",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }
}
