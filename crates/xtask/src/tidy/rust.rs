//! The names in a Rust file, read from its tokens.
//!
//! Tokens suffice for these rules, and show the inside of macros, which a parsed syntax tree does not. Comments and
//! strings are not tokens of code, so quoting a rule does not break it.

use std::ops::RangeInclusive;
use std::str::FromStr;

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};

use super::Complaint;

/// The parts of a file that rules apply to.
#[derive(Debug, Default)]
pub struct Source {
    /// Every path, with the groups of a `use` expanded: `use a::{b, c}` is `a::b` and `a::c`.
    pub paths: Vec<Path>,
    /// The lines of attributes that disable a test.
    pub ignores: Vec<usize>,
    /// Every `mod`, with or without a body, and its line.
    pub modules: Vec<(String, usize)>,
    /// Every named function, type, constant and module.
    pub items: Vec<Item>,
}

/// A definition.
#[derive(Debug)]
pub struct Item {
    /// The keyword before its name: `fn`, `struct`.
    pub kind: String,
    pub name: String,
    /// The first and the last line.
    pub lines: RangeInclusive<usize>,
    /// Whether the item is `pub` without restriction, wherever it is.
    pub is_public: bool,
    /// Whether the item is a `#[test]`.
    pub is_test: bool,
}

/// A path such as `crate::op::Op`, or a single name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The names in order; `*` for all.
    pub segments: Vec<String>,
    /// The line of the path.
    pub line: usize,
    /// Whether the path is called as a macro.
    pub is_macro: bool,
    /// Whether the path is in test code.
    pub in_test: bool,
    /// The modules of this file around the path.
    pub inside: Vec<String>,
}

#[derive(Clone)]
struct Place {
    inside: Vec<String>,
    in_test: bool,
}

impl Source {
    /// Reads a file. Everything under `tests/` and in a `tests.rs` is test code.
    pub fn read(file: &str, text: &str) -> Result<Source, Complaint> {
        let tokens = TokenStream::from_str(text).map_err(|error| {
            let line = error.span().start().line;
            Complaint::new(file, line, "cannot be parsed as Rust")
        })?;
        let in_test = file.contains("/tests/") || file.ends_with("/tests.rs");
        let place = Place {
            inside: Vec::new(),
            in_test,
        };
        let mut source = Source::default();
        source.walk(tokens, &place);
        Ok(source)
    }

    fn walk(&mut self, tokens: TokenStream, place: &Place) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        // An attribute or a `mod` applies to the next braces.
        let mut next = place.clone();
        let mut at = 0;
        while at < tokens.len() {
            self.items.extend(item(&tokens, at));
            match &tokens[at] {
                TokenTree::Punct(p) if p.as_char() == '#' => {
                    let after = tokens[at + 1..].iter().take(2).find_map(brackets);
                    if let Some(attribute) = after {
                        self.attribute(attribute, &mut next);
                        at += 1 + usize::from(is_punct(tokens.get(at + 1), '!'));
                    }
                }
                TokenTree::Punct(p) if p.as_char() == ';' => next = place.clone(),
                TokenTree::Group(group) => {
                    if group.delimiter() == Delimiter::Brace {
                        self.walk(group.stream(), &next);
                        next = place.clone();
                    } else {
                        self.walk(group.stream(), place);
                    }
                }
                TokenTree::Ident(word) if *word == "mod" => {
                    if let Some(TokenTree::Ident(name)) = tokens.get(at + 1) {
                        let line = name.span().start().line;
                        self.modules.push((name.to_string(), line));
                        next.inside.push(name.to_string());
                        at += 1;
                    }
                }
                TokenTree::Ident(_) => {
                    at = self.path(&tokens, at, &[], place);
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Reads the path that starts at `at`, after `prefix`. Returns the position after it.
    fn path(
        &mut self,
        tokens: &[TokenTree],
        mut at: usize,
        prefix: &[String],
        place: &Place,
    ) -> usize {
        let mut segments = prefix.to_vec();
        let line = tokens[at].span().start().line;
        loop {
            match tokens.get(at) {
                Some(TokenTree::Ident(name)) => {
                    // `use a::{self}` is `a`; `self::b` keeps its first word.
                    if *name != "self" || segments.is_empty() {
                        segments.push(name.to_string());
                    }
                }
                Some(TokenTree::Punct(star)) if star.as_char() == '*' => segments.push("*".into()),
                Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                    self.use_group(group, &segments, place);
                    return at + 1;
                }
                // `a::<T>` and the like: the path ends, and the rest is read separately.
                _ => break,
            }
            at += 1;
            if !is_colons(tokens, at) {
                break;
            }
            at += 2;
        }
        let called = matches!(tokens.get(at + 1), Some(TokenTree::Group(_)));
        self.paths.push(Path {
            segments,
            line,
            is_macro: called && is_punct(tokens.get(at), '!'),
            in_test: place.in_test,
            inside: place.inside.clone(),
        });
        at
    }

    /// Reads the parts of `prefix::{…}`.
    fn use_group(&mut self, group: &Group, prefix: &[String], place: &Place) {
        let tokens: Vec<TokenTree> = group.stream().into_iter().collect();
        for part in tokens.split(|t| is_punct(Some(t), ',')) {
            if !part.is_empty() {
                // `as name` may follow the path; it names nothing.
                self.path(part, 0, prefix, place);
            }
        }
    }

    fn attribute(&mut self, group: &Group, next: &mut Place) {
        let words = words(group.stream());
        let has = |word: &str| words.iter().any(|w| w == word);
        let first = words.first().map_or("", String::as_str);
        if first == "ignore" || (first == "cfg_attr" && has("ignore")) {
            self.ignores.push(group.span().start().line);
        }
        if has("test") && !has("not") && first != "cfg_attr" {
            next.in_test = true;
        }
    }
}

/// The item that is defined if one of these keywords comes before a name.
fn item(tokens: &[TokenTree], at: usize) -> Option<Item> {
    const KINDS: [&str; 9] = [
        "fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod",
    ];
    const BEFORE_FN: [&str; 4] = ["fn", "unsafe", "async", "extern"];
    let (TokenTree::Ident(kind), TokenTree::Ident(name)) = (&tokens[at], tokens.get(at + 1)?)
    else {
        return None;
    };
    let (kind, name) = (kind.to_string(), name.to_string());
    if !KINDS.contains(&&*kind) || BEFORE_FN.contains(&&*name) {
        return None;
    }
    let is_end = |token: &TokenTree| {
        let is_braces = matches!(token, TokenTree::Group(g) if g.delimiter() == Delimiter::Brace);
        is_braces || is_punct(Some(token), ';')
    };
    let start = tokens[..at]
        .iter()
        .rposition(is_end)
        .map_or(0, |end| end + 1);
    let end = tokens[at..].iter().find(|token| is_end(token))?;
    let before = &tokens[start..at];
    if let Some(TokenTree::Punct(_)) = before.last() {
        return None; // `*const T` and `<const N: usize>` define nothing.
    }
    let is_pub = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if *word == "pub");
    let public = before.iter().rposition(is_pub);
    Some(Item {
        kind,
        name,
        lines: tokens[at].span().start().line..=end.span().end().line,
        is_public: public
            .is_some_and(|at| !matches!(before.get(at + 1), Some(TokenTree::Group(_)))),
        is_test: before
            .iter()
            .filter_map(brackets)
            .any(|group| words(group.stream()) == ["test"]),
    })
}

/// All names in a token stream, including its groups.
fn words(tokens: TokenStream) -> Vec<String> {
    let nested = tokens.into_iter().flat_map(|token| match token {
        TokenTree::Ident(word) => vec![word.to_string()],
        TokenTree::Group(group) => words(group.stream()),
        _ => Vec::new(),
    });
    nested.collect()
}

fn brackets(token: &TokenTree) -> Option<&Group> {
    match token {
        TokenTree::Group(g) if g.delimiter() == Delimiter::Bracket => Some(g),
        _ => None,
    }
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == wanted)
}

fn is_colons(tokens: &[TokenTree], at: usize) -> bool {
    let joint = matches!(tokens.get(at), Some(TokenTree::Punct(p))
        if p.as_char() == ':' && p.spacing() == Spacing::Joint);
    joint && is_punct(tokens.get(at + 1), ':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        let source = Source::read("a.rs", text).unwrap();
        let paths = source.paths.iter().filter(|p| p.segments.len() > 1);
        paths
            .map(|p| format!("{} {}", p.line, p.segments.join("::")))
            .collect()
    }

    #[test]
    fn groups_are_taken_apart() {
        assert_eq!(
            paths("use a::{\n  self as z, b::c,\n  d::{e, f::*},\n};"),
            ["2 a::b::c", "3 a::d::e", "3 a::d::f::*"]
        );
    }

    #[test]
    fn macros_are_seen_into_and_texts_are_not() {
        assert_eq!(
            paths(
                "/// [`crate::x`]\nfn f() { // crate::y::z\n assert!(crate::a::b::<c::D>(\"crate::q\")); }"
            ),
            ["3 crate::a::b", "3 c::D"]
        );
        assert_eq!(
            paths("macro_rules! m { () => { $crate::a::b } }"),
            ["1 crate::a::b"]
        );
    }

    #[test]
    fn modules_and_tests_are_known() {
        let text = "fn a() { p::q }\n#[cfg(test)]\nmod tests { fn b() { p::r } }\n#[test] fn c() { p::s }\nfn d() { p::t }";
        let source = Source::read("a.rs", text).unwrap();
        let found = |last: &str| {
            source
                .paths
                .iter()
                .find(|p| p.segments.ends_with(&[last.into()]))
        };
        let in_test = ["q", "r", "s", "t"].map(|last| found(last).unwrap().in_test);
        assert_eq!(in_test, [false, true, true, false]);
        assert_eq!(found("r").unwrap().inside, ["tests"]);
        assert_eq!(source.modules, [("tests".to_owned(), 3)]);
    }

    #[test]
    fn definitions_are_known() {
        let text = "pub const fn a() {}\npub(crate) struct B { pub c: u32 }\n#[test]\nfn d() {\n fn e() {}\n}\n\
            impl B { #[track_caller] pub unsafe fn f(&self) {\n} const G: u32 = 1; }\ntype H = fn(u32);\npub fn i<const N: usize>(j: *const u8);";
        let source = Source::read("a.rs", text).unwrap();
        let of = |item: &Item| {
            let (first, last) = (item.lines.start(), item.lines.end());
            let seen = [(item.is_public, " pub"), (item.is_test, " test")];
            let seen: String = seen
                .iter()
                .filter(|(is, _)| *is)
                .map(|(_, word)| *word)
                .collect();
            format!("{} {} {first}-{last}{seen}", item.kind, item.name)
        };
        let items: Vec<String> = source.items.iter().map(of).collect();
        assert_eq!(
            items,
            [
                "fn a 1-1 pub",
                "struct B 2-2",
                "fn d 4-6 test",
                "fn e 5-5",
                "fn f 7-8 pub",
                "const G 8-8",
                "type H 9-9",
                "fn i 10-10 pub"
            ]
        );
    }

    #[test]
    fn what_is_not_rust_is_a_complaint() {
        assert!(Source::read("a.rs", "fn f() {").is_err());
    }
}
