//! Values by dotted path, in file order, each with a tag of where it came from.
//!
//! A key may itself hold dots (`llama-3.1-70b-proxy`), so paths are never split at them: every node
//! keeps its whole path, and the index finds it in one hash.

use std::{collections::HashMap, sync::Arc};
use tprimat_words::part;

use serde_json::Value;

pub(super) type NodeId = usize;
pub(super) const ROOT: NodeId = 0;

#[derive(Clone, Debug)]
pub(super) struct Node<T> {
    pub path: Arc<str>,
    key_start: usize,
    pub children: Vec<NodeId>,
    /// A value, or none where this is a table.
    pub leaf: Option<(Value, T)>,
}

impl<T> Node<T> {
    pub fn key(&self) -> &str {
        part(&self.path, self.key_start..)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Tree<T> {
    nodes: Vec<Node<T>>,
    index: HashMap<Arc<str>, NodeId>,
}

impl<T> Default for Tree<T> {
    fn default() -> Self {
        let root = Node {
            path: "".into(),
            key_start: 0,
            children: Vec::new(),
            leaf: None,
        };
        Self {
            nodes: vec![root],
            index: HashMap::new(),
        }
    }
}

impl<T: Copy> Tree<T> {
    pub fn node(&self, id: NodeId) -> &Node<T> {
        &self.nodes[id]
    }
    pub fn find(&self, path: &str) -> Option<&Node<T>> {
        if path.is_empty() {
            Some(&self.nodes[ROOT])
        } else {
            self.index.get(path).map(|id| &self.nodes[*id])
        }
    }
    pub fn leaf(&self, path: &str) -> Option<&(Value, T)> {
        self.find(path)?.leaf.as_ref()
    }
    pub fn child(&self, parent: &Node<T>, key: &str) -> Option<&Node<T>> {
        parent
            .children
            .iter()
            .map(|id| &self.nodes[*id])
            .find(|node| node.key() == key)
    }
    pub fn children<'a>(&'a self, parent: &'a Node<T>) -> impl Iterator<Item = &'a Node<T>> {
        parent.children.iter().map(|id| &self.nodes[*id])
    }
    /// The longest key below `parent` that `rest` begins with, as a whole segment.
    pub fn longest_key<'a>(&'a self, parent: &'a Node<T>, rest: &str) -> Option<&'a str> {
        let is_segment = |key: &&str| {
            rest.strip_prefix(*key)
                .is_some_and(|after| after.is_empty() || after.starts_with('.'))
        };
        self.children(parent)
            .map(Node::key)
            .filter(is_segment)
            .max_by_key(|key| key.len())
    }

    /// The node of `key` below `parent`, made if need be; `None` if another spelling of the path is
    /// taken.
    pub fn enter(&mut self, parent: NodeId, key: &str) -> Option<NodeId> {
        let path = super::shape::join(&self.nodes[parent].path, key);
        if let Some(id) = self.index.get(path.as_str()) {
            return self.nodes[parent].children.contains(id).then_some(*id);
        }
        let id = self.nodes.len();
        let path: Arc<str> = path.into();
        self.nodes.push(Node {
            key_start: path.len() - key.len(),
            path: path.clone(),
            children: Vec::new(),
            leaf: None,
        });
        self.index.insert(path, id);
        self.nodes[parent].children.push(id);
        self.nodes[parent].leaf = None;
        Some(id)
    }

    /// Makes a node a value; what was below it is gone.
    pub fn set(&mut self, id: NodeId, value: Value, tag: T) {
        self.clear(id);
        self.nodes[id].leaf = Some((value, tag));
    }

    /// Takes a node away, as if nobody had named it.
    pub fn remove(&mut self, id: NodeId) {
        self.clear(id);
        self.index.remove(&self.nodes[id].path);
        for node in &mut self.nodes {
            node.children.retain(|child| *child != id);
        }
    }

    /// Makes a node an empty table.
    pub fn clear(&mut self, id: NodeId) {
        self.nodes[id].leaf = None;
        for child in std::mem::take(&mut self.nodes[id].children) {
            self.index.remove(&self.nodes[child].path);
            self.clear(child);
        }
    }

    /// All values in file order.
    pub fn leaves(&self) -> impl Iterator<Item = (&Arc<str>, &Value, T)> {
        let mut stack = vec![ROOT];
        std::iter::from_fn(move || {
            let node = &self.nodes[stack.pop()?];
            stack.extend(node.children.iter().rev());
            Some(node)
        })
        .filter_map(|node| {
            node.leaf
                .as_ref()
                .map(|(value, tag)| (&node.path, value, *tag))
        })
    }

    /// Everything below a node as one nested value.
    pub fn nested(&self, node: &Node<T>) -> Value {
        match &node.leaf {
            Some((value, _)) => value.clone(),
            None => Value::Object(
                self.children(node)
                    .map(|n| (n.key().to_owned(), self.nested(n)))
                    .collect(),
            ),
        }
    }
}
