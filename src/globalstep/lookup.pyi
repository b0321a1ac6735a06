# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.text.lookup_tables import HashTable as StaticHashTable
from globalstep.tf1.text.lookup_tables import KeyValueTensorInitializer as KeyValueTensorInitializer
from globalstep.tf1.text.lookup_tables import StaticVocabularyTable as StaticVocabularyTable
from globalstep.tf1.text.lookup_tables import TextFileIndex as TextFileIndex
from globalstep.tf1.text.lookup_tables import TextFileInitializer as TextFileInitializer
