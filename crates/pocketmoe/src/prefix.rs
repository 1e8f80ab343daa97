//! Slots of the key and value cache: which are free, and which hold the prefixes of earlier sequences.
//!
//! The prefix cache is a tree with one token a node, so the longest shared prefix is found exactly. A node in use by a
//! running sequence is locked together with its ancestors; unlocked leaves are given up in the order of their last use
//! when slots run out. Invariant: every slot is free, in one node, or held by one sequence.

use std::collections::{BTreeMap, BinaryHeap};

/// A node of the tree; 0 is the root, which holds no token.
pub(crate) type NodeId = usize;

const ROOT: NodeId = 0;

#[derive(Default)]
struct Node {
    token: u32,
    slot: u32,
    parent: NodeId,
    children: BTreeMap<u32, NodeId>,
    /// Running sequences whose path goes through this node.
    locks: usize,
    used: u64,
}

/// All slots of the engine.
pub(crate) struct Slots {
    capacity: usize,
    free: Vec<u32>,
    nodes: Vec<Node>,
    spare: Vec<NodeId>,
    /// Nodes without a lock.
    evictable: usize,
    /// Nodes with a lock.
    locked: usize,
    clock: u64,
}

/// The cached part of a prompt: its slots and the node at its end, which is locked.
pub(crate) struct Prefix {
    /// Slots of the leading tokens.
    pub(crate) slots: Vec<u32>,
    /// The last of their nodes, to unlock later.
    pub(crate) node: NodeId,
}

impl Slots {
    /// `capacity` free slots and an empty tree.
    pub(crate) fn new(capacity: usize) -> Self {
        let free = (0..capacity as u32).rev().collect();
        Self { capacity, free, nodes: vec![Node::default()], spare: Vec::new(), evictable: 0, locked: 0, clock: 0 }
    }

    /// Number of slots.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Slots that can be had: free ones and those of unlocked nodes.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.evictable
    }

    /// Cached tokens that running sequences use.
    pub(crate) fn locked(&self) -> usize {
        self.locked
    }

    /// Cached tokens, in use or not.
    #[cfg(test)]
    fn cached(&self) -> usize {
        self.evictable + self.locked
    }

    /// The longest cached prefix of `tokens`, locked until [`Slots::unlock`].
    pub(crate) fn find(&mut self, tokens: &[u32]) -> Prefix {
        self.clock += 1;
        let (mut node, mut slots) = (ROOT, Vec::new());
        for token in tokens {
            let Some(child) = self.nodes[node].children.get(token) else { break };
            node = *child;
            self.nodes[node].used = self.clock;
            slots.push(self.nodes[node].slot);
        }
        self.lock(node);
        Prefix { slots, node }
    }

    /// `count` slots, giving up unlocked nodes where needed; nothing when there are not that many.
    pub(crate) fn take(&mut self, count: usize) -> Option<Vec<u32>> {
        if self.available() < count {
            return None;
        }
        self.evict(count.saturating_sub(self.free.len()));
        Some(self.free.split_off(self.free.len() - count))
    }

    /// Returns slots held by a sequence.
    pub(crate) fn release(&mut self, slots: &[u32]) {
        self.free.extend_from_slice(slots);
    }

    /// Puts `tokens` with their `slots` into the tree and locks the end of the path.
    ///
    /// Of a token that is there already the node's own slot wins: it replaces the entry of `slots`, and the sequence's
    /// copy (from `own` on, the earlier ones being the tree's) becomes free. Afterwards all `slots` belong to the tree.
    pub(crate) fn insert(&mut self, tokens: &[u32], slots: &mut [u32], own: usize) -> NodeId {
        self.clock += 1;
        let mut node = ROOT;
        for (place, (token, slot)) in tokens.iter().zip(slots).enumerate() {
            node = if let Some(child) = self.nodes[node].children.get(token).copied() {
                let kept = self.nodes[child].slot;
                if place >= own && kept != *slot {
                    self.free.push(*slot);
                    *slot = kept;
                }
                child
            } else {
                self.add(node, *token, *slot)
            };
            self.nodes[node].used = self.clock;
        }
        self.lock(node);
        node
    }

    fn add(&mut self, parent: NodeId, token: u32, slot: u32) -> NodeId {
        let node = Node { token, slot, parent, ..Node::default() };
        let id = if let Some(id) = self.spare.pop() {
            self.nodes[id] = node;
            id
        } else {
            self.nodes.push(node);
            self.nodes.len() - 1
        };
        self.nodes[parent].children.insert(token, id);
        self.evictable += 1;
        id
    }

    fn lock(&mut self, mut node: NodeId) {
        while node != ROOT {
            self.nodes[node].locks += 1;
            if self.nodes[node].locks == 1 {
                self.evictable -= 1;
                self.locked += 1;
            }
            node = self.nodes[node].parent;
        }
    }

    /// Takes one lock off the path that ends at `node`.
    pub(crate) fn unlock(&mut self, mut node: NodeId) {
        while node != ROOT {
            self.nodes[node].locks -= 1;
            if self.nodes[node].locks == 0 {
                self.evictable += 1;
                self.locked -= 1;
            }
            node = self.nodes[node].parent;
        }
    }

    /// Gives up `count` unlocked nodes, leaves first, those used longest ago first.
    fn evict(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let leaf = |node: &Node| node.locks == 0 && node.children.is_empty();
        let mut alive = vec![true; self.nodes.len()];
        self.spare.iter().for_each(|id| alive[*id] = false);
        let candidates = (1..self.nodes.len()).filter(|id| alive[*id] && leaf(&self.nodes[*id]));
        let mut heap: BinaryHeap<_> = candidates.map(|id| std::cmp::Reverse((self.nodes[id].used, id))).collect();
        for _ in 0..count {
            let Some(std::cmp::Reverse((_, id))) = heap.pop() else { return };
            let Node { token, slot, parent, .. } = std::mem::take(&mut self.nodes[id]);
            self.nodes[parent].children.remove(&token);
            self.spare.push(id);
            self.free.push(slot);
            self.evictable -= 1;
            if parent != ROOT && leaf(&self.nodes[parent]) {
                heap.push(std::cmp::Reverse((self.nodes[parent].used, parent)));
            }
        }
    }

    /// Empties the tree. Nothing may be running.
    pub(crate) fn flush(&mut self) {
        *self = Self::new(self.capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a sequence to its end: returns how many of its tokens were cached.
    fn serve(slots: &mut Slots, tokens: &[u32]) -> usize {
        let prefix = slots.find(tokens);
        let mut own = slots.take(tokens.len() - prefix.slots.len()).unwrap();
        let cached = prefix.slots.len();
        let mut all = prefix.slots;
        all.append(&mut own);
        let node = slots.insert(tokens, &mut all, cached);
        slots.unlock(prefix.node);
        slots.unlock(node);
        cached
    }

    #[test]
    fn an_empty_tree_finds_nothing_and_gives_everything() {
        let mut slots = Slots::new(4);
        let prefix = slots.find(&[1, 2]);
        assert!(prefix.slots.is_empty());
        slots.unlock(prefix.node);
        assert!(slots.take(5).is_none());
        assert_eq!(slots.take(4).unwrap().len(), 4);
        assert_eq!(slots.take(0).unwrap().len(), 0);
    }

    #[test]
    fn the_longest_shared_prefix_is_found_until_it_is_flushed() {
        let mut slots = Slots::new(20);
        assert_eq!(serve(&mut slots, &[1, 2, 3, 4]), 0);
        assert_eq!(serve(&mut slots, &[1, 2, 9]), 2);
        assert_eq!(serve(&mut slots, &[1, 2, 3, 4, 5]), 4);
        assert_eq!((slots.cached(), slots.available()), (6, 20));
        slots.flush();
        assert_eq!((slots.cached(), slots.available()), (0, 20));
        assert_eq!(serve(&mut slots, &[1, 2, 3, 4]), 0);
    }

    #[test]
    fn two_sequences_that_computed_the_same_prompt_keep_one_copy() {
        let mut slots = Slots::new(8);
        let (a, b) = (slots.find(&[7, 8]), slots.find(&[7, 8]));
        let (mut own_a, mut own_b) = (slots.take(2).unwrap(), slots.take(2).unwrap());
        let end_a = slots.insert(&[7, 8], &mut own_a, 0);
        let end_b = slots.insert(&[7, 8], &mut own_b, 0);
        assert_eq!((own_a, slots.cached(), slots.locked()), (own_b, 2, 2));
        for node in [a.node, b.node, end_a] {
            slots.unlock(node);
        }
        assert_eq!((slots.locked(), slots.available()), (2, 6));
        slots.unlock(end_b);
        assert_eq!((slots.locked(), slots.available()), (0, 8));
    }

    #[test]
    fn the_oldest_unlocked_leaves_go_first_and_locked_ones_stay() {
        let mut slots = Slots::new(6);
        serve(&mut slots, &[1, 2, 3]);
        serve(&mut slots, &[4, 5, 6]);
        let kept = slots.find(&[1, 2, 3]);
        assert!(slots.take(4).is_none());
        let taken = slots.take(2).unwrap();
        assert_eq!(slots.find(&[4, 5, 6]).slots.len(), 1, "the tail of the unlocked path was given up");
        slots.release(&taken);
        assert_eq!(kept.slots.len(), 3);
        assert_eq!(slots.find(&[1, 2, 3]).slots.len(), 3);
    }
}
