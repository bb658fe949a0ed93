//! YAML text as a tree of nodes, with limits on its size.
//!
//! All nodes are in one list. An alias is a second parent of the node that it refers to, so reading never copies that
//! node. The expanded size of aliases still counts, because everything that walks the tree visits them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, Tag};

use crate::error::{Error, Fault, shown};
use crate::limits::Limits;

/// The nodes of one YAML document.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    nodes: Vec<Node<'a>>,
    /// Children of all lists and mappings; those of one node are contiguous.
    children: Vec<u32>,
}

#[derive(Debug)]
struct Node<'a> {
    line: usize,
    column: usize,
    /// Number of nodes from here down, with aliases expanded.
    expanded: usize,
    content: Content<'a>,
}

#[derive(Debug)]
enum Content<'a> {
    Scalar { text: Cow<'a, str>, plain: bool },
    Sequence { first: usize, count: usize },
    Mapping { first: usize, count: usize },
}

/// A node of a tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'t> {
    tree: &'t Tree<'t>,
    id: u32,
}

/// The kind of a node, independent of how it was written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind<'t> {
    /// Text, and whether it is written without quotes.
    Scalar(&'t str, bool),
    Sequence(Items<'t>),
    /// Alternating keys and values.
    Mapping(Items<'t>),
}

/// The children of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Items<'t> {
    tree: &'t Tree<'t>,
    ids: &'t [u32],
}

impl<'t> View<'t> {
    /// The line on which the node starts, from 1.
    pub(crate) fn line(self) -> usize {
        self.node().line
    }

    /// The column at which the node starts, from 1.
    pub(crate) fn column(self) -> usize {
        self.node().column
    }

    /// An error at the node.
    pub(crate) fn fault(self, message: impl Into<String>) -> Fault {
        Fault::new(self.line(), message)
    }

    /// An error at a node of the wrong type.
    pub(crate) fn is_not(self, wanted: &str) -> Fault {
        self.fault(format!("{self} is given where {wanted} is expected"))
    }

    pub(crate) fn kind(self) -> Kind<'t> {
        let items = |first: usize, count: usize| Items {
            tree: self.tree,
            ids: &self.tree.children[first..first + count],
        };
        match &self.node().content {
            Content::Scalar { text, plain } => Kind::Scalar(text, *plain),
            Content::Sequence { first, count } => Kind::Sequence(items(*first, *count)),
            Content::Mapping { first, count } => Kind::Mapping(items(*first, *count)),
        }
    }

    fn node(self) -> &'t Node<'t> {
        &self.tree.nodes[self.id as usize]
    }
}

/// Describes the node, for messages about a wrong value.
impl fmt::Display for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            Kind::Scalar("", true) => f.write_str("nothing"),
            Kind::Scalar(text, true) => write!(f, "`{}`", shown(text)),
            Kind::Scalar(text, false) => write!(f, "the text \"{}\"", shown(text)),
            Kind::Sequence(_) => f.write_str("a list"),
            Kind::Mapping(_) => f.write_str("a mapping"),
        }
    }
}

impl<'t> Items<'t> {
    pub(crate) fn len(self) -> usize {
        self.ids.len()
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = View<'t>> {
        let tree = self.tree;
        self.ids.iter().map(move |&id| View { tree, id })
    }
}

impl<'a> Tree<'a> {
    /// The outermost node.
    pub(crate) fn root(&self) -> View<'_> {
        View {
            tree: self,
            // A parent is added when it closes, after its contents.
            id: self.nodes.len() as u32 - 1,
        }
    }

    /// Reads text with one YAML document.
    pub(crate) fn read(text: &'a str, limits: &Limits) -> Result<Self, Error> {
        let mut builder = Builder {
            tree: Tree {
                nodes: Vec::new(),
                children: Vec::new(),
            },
            open: Vec::new(),
            anchors: HashMap::new(),
            total: 0,
            limits,
        };
        let mut parser = Parser::new_from_str(text);
        let mut documents = 0;
        while let Some(next) = parser.next_event() {
            let (event, span) = next.map_err(|error| not_yaml(text, &error))?;
            match event {
                Event::DocumentStart(_) if documents > 0 => {
                    return Err(error_at(
                        span.start,
                        "a second YAML document starts here; a file holds one: list several \
                         programs under `cases:`, or split the file",
                    ));
                }
                Event::DocumentStart(_) => documents += 1,
                Event::StreamEnd => break,
                _ => builder.event(event, span)?,
            }
        }
        if builder.tree.nodes.is_empty() {
            return Err(Error {
                line: 1,
                column: 1,
                message: "the file is empty; a program is a mapping with `name:` and `ops:`"
                    .to_owned(),
            });
        }
        Ok(builder.tree)
    }
}

struct Builder<'a, 'l> {
    tree: Tree<'a>,
    open: Vec<Open>,
    /// Anchors by the parser's number; none while the node is still open.
    anchors: HashMap<usize, Option<u32>>,
    /// Number of nodes so far, with aliases expanded.
    total: usize,
    limits: &'l Limits,
}

/// A list or mapping whose end has not been read.
struct Open {
    start: Marker,
    mapping: bool,
    anchor: usize,
    children: Vec<u32>,
    total_before: usize,
}

impl<'a> Builder<'a, '_> {
    fn event(&mut self, event: Event<'a>, span: Span) -> Result<(), Error> {
        let start = span.start;
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let string = check_tag(tag.as_deref(), start)?;
                let plain = style == ScalarStyle::Plain && !string;
                self.grow(1, start)?;
                let id = self.add(start, 1, Content::Scalar { text, plain });
                self.name(anchor, Some(id));
                self.attach(id);
            }
            Event::Alias(anchor) => {
                let Some(&Some(id)) = self.anchors.get(&anchor) else {
                    return Err(error_at(
                        start,
                        "an alias is inside the node that it refers to; write that node out",
                    ));
                };
                self.grow(self.tree.nodes[id as usize].expanded, start)?;
                self.attach(id);
            }
            Event::SequenceStart(anchor, tag) => {
                check_tag(tag.as_deref(), start)?;
                self.open(start, false, anchor)?;
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(tag.as_deref(), start)?;
                self.open(start, true, anchor)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, start: Marker, mapping: bool, anchor: usize) -> Result<(), Error> {
        if self.open.len() >= self.limits.depth {
            return Err(error_at(
                start,
                format!(
                    "lists and mappings are nested more than {} deep; a stream program needs six",
                    self.limits.depth
                ),
            ));
        }
        let total_before = self.total;
        self.grow(1, start)?;
        self.name(anchor, None);
        self.open.push(Open {
            start,
            mapping,
            anchor,
            children: Vec::new(),
            total_before,
        });
        Ok(())
    }

    fn close(&mut self) {
        // The parser guarantees that starts and ends match.
        let Some(open) = self.open.pop() else { return };
        let (first, count) = (self.tree.children.len(), open.children.len());
        self.tree.children.extend(open.children);
        let content = if open.mapping {
            Content::Mapping { first, count }
        } else {
            Content::Sequence { first, count }
        };
        let id = self.add(open.start, self.total - open.total_before, content);
        self.name(open.anchor, Some(id));
        self.attach(id);
    }

    fn add(&mut self, start: Marker, expanded: usize, content: Content<'a>) -> u32 {
        let id = self.tree.nodes.len() as u32;
        self.tree.nodes.push(Node {
            line: start.line(),
            column: start.col() + 1,
            expanded,
            content,
        });
        id
    }

    fn attach(&mut self, id: u32) {
        // The outermost node has no parent.
        if let Some(parent) = self.open.last_mut() {
            parent.children.push(id);
        }
    }

    fn name(&mut self, anchor: usize, id: Option<u32>) {
        // The parser numbers anchors from 1; 0 is a node without an anchor.
        if anchor != 0 {
            self.anchors.insert(anchor, id);
        }
    }

    fn grow(&mut self, by: usize, at: Marker) -> Result<(), Error> {
        self.total = self.total.saturating_add(by);
        if self.total <= self.limits.nodes {
            return Ok(());
        }
        Err(error_at(
            at,
            format!(
                "the document has more than {} nodes, with aliases expanded; split it, or use \
                 fewer aliases",
                self.limits.nodes
            ),
        ))
    }
}

/// Returns whether a tag makes its node a string. Tags of YAML's core schema for the other types of the format have
/// no effect; any other tag is an error, since the format has no such types.
fn check_tag(tag: Option<&Tag>, at: Marker) -> Result<bool, Error> {
    let Some(tag) = tag else { return Ok(false) };
    let string = tag.is_yaml_core_schema() && tag.suffix == "str";
    let core = ["str", "int", "bool", "null", "map", "seq"];
    let known = tag.is_yaml_core_schema() && core.contains(&tag.suffix.as_str());
    let non_specific = tag.suffix.is_empty() && tag.handle == "!";
    if known || non_specific {
        return Ok(string || non_specific);
    }
    Err(error_at(
        at,
        format!(
            "the tag `{}` has no meaning in a stream program; remove it",
            shown(&tag.to_string())
        ),
    ))
}

fn error_at(at: Marker, message: impl Into<String>) -> Error {
    Error {
        line: at.line(),
        column: at.col() + 1,
        message: message.into(),
    }
}

/// Converts the parser's error, with a remedy for the most common mistakes.
fn not_yaml(text: &str, error: &ScanError) -> Error {
    let at = error.marker();
    let line = text.lines().nth(at.line().saturating_sub(1)).unwrap_or("");
    let remedy = if line.trim_start_matches(' ').starts_with('\t') {
        "indent with spaces, not tabs"
    } else if has_bare_range(line) {
        "write a range in quotes: \"A[0:64]\""
    } else {
        "see that quotes, brackets and indentation match, here and in the line above"
    };
    error_at(
        *at,
        format!("not YAML: {}; {remedy}", one_line(error.info())),
    )
}

/// Returns whether a line has something like `A[0:64]`, or `A[0`, outside quotes.
fn has_bare_range(line: &str) -> bool {
    let bytes = line.as_bytes();
    let mut quoted = false;
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'"' | b'\'' => quoted = !quoted,
            b'[' if !quoted && at > 0 => {
                let follows = bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
                if follows && bytes[at - 1].is_ascii_alphanumeric() {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}

/// Returns a message of the parser without line breaks.
fn one_line(message: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    message.chars().map(plain).collect()
}
