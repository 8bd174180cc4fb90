CORPUS = []
