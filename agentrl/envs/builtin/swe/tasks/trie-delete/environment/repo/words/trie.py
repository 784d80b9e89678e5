"""Words in a tree of letters."""


class Node:
    __slots__ = ("children", "count")

    def __init__(self):
        self.children = {}
        self.count = 0  # how often the word that ends here was added


class Trie:
    def __init__(self, words=()):
        self.root = Node()
        for word in words:
            self.add(word)

    def add(self, word):
        node = self.root
        for letter in word:
            node = node.children.setdefault(letter, Node())
        node.count += 1

    def find(self, prefix):
        """The node at the end of a prefix, or None."""
        node = self.root
        for letter in prefix:
            node = node.children.get(letter)
            if node is None:
                return None
        return node

    def __contains__(self, word):
        node = self.find(word)
        return node is not None and node.count > 0

    def remove(self, word):
        """Forget a word and the letters that only it needed; whether it was there."""
        path = [self.root]
        for letter in word:
            if letter not in path[-1].children:
                return False
            path.append(path[-1].children[letter])
        path[-1].count = 0
        for parent, letter in zip(reversed(path[:-1]), reversed(word)):
            del parent.children[letter]
            if len(parent.children) > 1:
                break
        return True

    def words(self, prefix=""):
        """Every word with a prefix and how often it was added, in no particular order."""
        start = self.find(prefix)
        stack = [(prefix, start)] if start else []
        while stack:
            word, node = stack.pop()
            if node.count:
                yield word, node.count
            stack.extend((word + letter, child) for letter, child in node.children.items())

    def size(self):
        """How many letters the tree holds."""
        stack, total = [self.root], 0
        while stack:
            node = stack.pop()
            total += len(node.children)
            stack.extend(node.children.values())
        return total
